package runner

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"inspect/envs/proc"
	"inspect/envs/sandbox/stream"
	"inspect/envs/services"
	"inspect/envs/wire"
)

// errSecret is the error of a secret that the control plane does not give or
// that cannot be used: another attempt would not have it either.
type errSecret struct{ error }

func (e errSecret) Unwrap() error { return e.error }

// secretRefused makes a refusal of the control plane an errSecret.
func secretRefused(err error) error {
	var refused *wire.Error
	if errors.As(err, &refused) && refused.Code != "unavailable" {
		return errSecret{err}
	}
	return err
}

// apart makes a place of its own beside the box for one command that has
// secrets. Their values are asked for when everything else is there, go into
// the environment of that command and stay nowhere. name tells the places
// beside one box apart; whose is what people are shown.
func (b *box) apart(ctx context.Context, name, whose string, secrets []string) (_ services.Apart, err error) {
	a := b.a
	ctx, cancel := proc.WithTimeout(ctx, a.clock, a.opt.pace.sandbox)
	defer cancel()
	sb, end, err := a.node.Beside(ctx, a.grant(b.purpose), name)
	var refused *wire.Error
	switch {
	case errors.As(err, &refused) && refused.Code == "not_found":
		return services.Apart{}, fmt.Errorf("%w: %v", stream.ErrEnded, err)
	case err != nil:
		return services.Apart{}, fmt.Errorf("start a place of its own for %s: %w", whose, err)
	}
	shut := func() {
		_ = sb.Close()
		select {
		case <-end:
		case <-a.clock.After(a.opt.pace.sandboxEnd):
			a.log.Warn("nobody told how the place of a command with secrets ended", "whose", whose)
		}
	}
	values, err := a.control.secrets(ctx, secrets)
	if err != nil {
		shut()
		return services.Apart{}, secretRefused(fmt.Errorf("the secrets of %s: %w", whose, err))
	}
	place := services.Apart{Sandbox: sb, Close: shut}
	for _, s := range secrets {
		v, ok := values[s]
		if !ok || strings.ContainsRune(v, 0) {
			shut()
			return services.Apart{}, errSecret{fmt.Errorf("the secret %s of %s has no value that can be used", s, whose)}
		}
		place.Env = append(place.Env, s+"="+v)
	}
	a.events.note("Secrets handed to %s: %s.", whose, strings.Join(secrets, ", "))
	return place, nil
}
