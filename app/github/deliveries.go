package github

import (
	"context"
	"fmt"
	"time"

	gh "github.com/google/go-github/v60/github"
)

// FailedDelivery is a webhook delivery that did not reach us.
type FailedDelivery struct {
	ID    int64  // of the attempt, what Redeliver takes
	GUID  string // the same for every attempt
	Event string
	At    time.Time
}

// FailedDeliveries lists the deliveries since a time of which no attempt
// reached us, newest first, at most a thousand attempts back. GitHub keeps them
// for three days, Enterprise Server for seven, and repeats none by itself.
func (a *App) FailedDeliveries(ctx context.Context, since time.Time) ([]FailedDelivery, error) {
	var out []FailedDelivery
	err := a.self.call(ctx, 0, "list the webhook deliveries", func(api *gh.Client) error {
		arrived, listed := map[string]bool{}, map[string]bool{}
		cursor := ""
		for page := 0; page < 10; page++ {
			list, resp, err := api.Apps.ListHookDeliveries(ctx, &gh.ListCursorOptions{PerPage: 100, Cursor: cursor})
			if err != nil {
				return err
			}
			for _, d := range list {
				at := d.GetDeliveredAt().Time
				if at.Before(since) {
					return nil
				}
				guid := d.GetGUID()
				switch ok := d.GetStatusCode() >= 200 && d.GetStatusCode() < 300; {
				case ok:
					arrived[guid] = true
				case !arrived[guid] && !listed[guid]:
					listed[guid] = true
					out = append(out, FailedDelivery{ID: d.GetID(), GUID: guid, Event: d.GetEvent(), At: at})
				}
			}
			if cursor = resp.Cursor; cursor == "" {
				return nil
			}
		}
		return nil
	})
	return out, err
}

// Redeliver asks GitHub to send a delivery again. It arrives with the same GUID,
// so asking twice does no harm.
func (a *App) Redeliver(ctx context.Context, id int64) error {
	return a.self.call(ctx, 0, fmt.Sprintf("ask for webhook delivery %d again", id), func(api *gh.Client) error {
		_, _, err := api.Apps.RedeliverHookDelivery(ctx, id)
		return err
	})
}
