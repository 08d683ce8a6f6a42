package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync/atomic"

	"github.com/google/go-containerregistry/pkg/authn"
	"golang.org/x/sys/unix"

	"inspect/checks/redact"
	"inspect/envs/egress"
	"inspect/envs/image"
	"inspect/envs/image/pull"
	"inspect/envs/image/unpack"
	"inspect/envs/proc"
	"inspect/envs/wire"
)

// pulledWords bounds what is said of a fetch that failed, in bytes.
const pulledWords = 600

// bringImage sees to it that the image of a refresh is on this node. One that is
// missing is fetched from its registry if the operator's policy names it, once
// however many refreshes ask.
func (n *Node) bringImage(ctx context.Context, w wire.RefreshWork) error {
	_, digest, _ := strings.Cut(w.Image, "@")
	unlock, err := n.pulls.Lock(ctx, digest)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := n.images.Find(ctx, digest); w.Pull && errors.Is(err, image.ErrMissing) {
		if err := n.pullImage(ctx, w, digest); err != nil {
			return err
		}
	}
	_, err = n.findImage(ctx, w.Image)
	return err
}

// pullImage fetches an image and unpacks it. What speaks to the registry is a
// process of its own, under the account that also fetches repositories; what
// that says is taken for no more than an archive that somebody brought.
func (n *Node) pullImage(ctx context.Context, w wire.RefreshWork, digest string) error {
	if _, err := pull.Reference(w.Image); err != nil {
		return failed("the image %s is not on this node and cannot be fetched: %v", w.Image, err)
	}
	if n.o.Binary == "" {
		return errors.New("fetch the image: this node was not told which program does that")
	}
	auth, err := n.registryAuth(w.Image)
	if err != nil {
		return failed("the image %s: the credentials for registries: %v", w.Image, err)
	}
	if auth != nil {
		for _, v := range pull.Values(*auth) {
			n.hide(v)
			defer n.forget(v)
		}
	}
	sp, err := n.o.Store.Space(ctx)
	if err != nil {
		return err
	}
	config, err := json.Marshal(pull.Config{
		Image: w.Image, Auth: auth, Limit: min(unpack.DefaultLimits().Archive, n.room(sp)), Reach: egress.Config{Internal: w.Internal},
	})
	if err != nil {
		return err
	}
	c := proc.Command{Argv: []string{n.o.Binary, pull.Command}, Stdin: bytes.NewReader(append(config, '\n')), Clock: n.clock}
	if os.Geteuid() == 0 {
		c.Credential = &proc.Credential{UID: n.o.MirrorUID, GID: n.o.MirrorGID}
	}
	n.log.Info("fetching an image", "image", w.Image, "credential", auth != nil)
	life, end := context.WithCancel(ctx)
	defer end()
	out, in := io.Pipe()
	c.Stdout = in
	archive := &ending{r: out}
	var said []byte
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		res, err := proc.Run(life, c)
		said = res.Stderr
		in.CloseWithError(err) // nil is the archive's end
	}()
	_, err = n.importImage(ctx, digest, archive)
	broke := archive.broke.Load()
	end()
	out.Close()
	<-ended
	if err == nil || ctx.Err() != nil {
		return err
	}
	if broke != nil { // else it is about what was fetched, or ours
		var exit *proc.ExitError
		switch err = *broke; {
		case errors.As(err, &exit) && exit.Result.Signal == "":
			err = errors.New(redact.Cut(strings.Join(strings.Fields(redact.Visible(n.redactor.String(string(said)))), " "), pulledWords))
		case errors.Is(err, fs.ErrPermission) && c.Credential != nil:
			err = fmt.Errorf("user %d must be able to execute %s: %w", c.Credential.UID, n.o.Binary, err)
		}
	}
	return failed("the image %s could not be fetched: %v", w.Image, err)
}

// ending is an archive that remembers the error which ended it.
type ending struct {
	r     io.Reader
	broke atomic.Pointer[error]
}

func (e *ending) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrClosedPipe) {
		e.broke.Store(&err)
	}
	return n, err
}

// registryAuth is the credential for the registry of an image; nil: there is none.
func (n *Node) registryAuth(image string) (*authn.AuthConfig, error) {
	if n.o.RegistryAuth == "" {
		return nil, nil
	}
	c, err := ReadRegistryAuth(n.o.RegistryAuth)
	if err != nil {
		return nil, err
	}
	return c.For(image)
}

// maxRegistryAuth bounds the file, in bytes.
const maxRegistryAuth = 1 << 20

// ReadRegistryAuth reads the file of Options.RegistryAuth. Others than its owner
// must have no rights to it, and that must be this account or root.
func ReadRegistryAuth(path string) (pull.Credentials, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return pull.Credentials{}, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return pull.Credentials{}, err
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > maxRegistryAuth:
		return pull.Credentials{}, fmt.Errorf("%s is no file, or has more than %d bytes", path, maxRegistryAuth)
	case st.Mode&0o077 != 0:
		return pull.Credentials{}, fmt.Errorf("others than its owner have rights to %s: chmod 600", path)
	case st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return pull.Credentials{}, fmt.Errorf("%s belongs to somebody else", path)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxRegistryAuth))
	if err != nil {
		return pull.Credentials{}, err
	}
	c, err := pull.ParseCredentials(b)
	if err != nil {
		return c, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}
