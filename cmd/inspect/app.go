package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"inspect"
	"inspect/app/manifest"
	"inspect/app/web"
	"inspect/checks/redact"
	"inspect/cmd/inspect/newapp"
)

func appCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "app", Short: "The GitHub App"}
	cmd.AddCommand(appCreateCommand())
	return cmd
}

func appCreateCommand() *cobra.Command {
	o := newapp.Options{}
	var dir, hook, home, name, public string
	var overwrite bool
	cmd := &cobra.Command{
		Use:   "create --webhook-url https://HOST/webhooks/github [--org ORG]",
		Short: "Make the GitHub App and keep its id, key and secrets",
		Long: `Serve a page on this machine that has GitHub make the App of app.yml, for an organization or for
your own account, and keep what GitHub tells once: id and files in app.env, private key in app.pem,
webhook secret in webhook.secret, client secret in client.secret, each with mode 0600. ` + "`inspect serve`" + ` and ` + "`inspect doctor`" + ` read what
app.env says from the environment; the systemd unit does so by itself if --dir is /etc/inspect.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if o.Manifest, err = manifest.Parse(inspect.Manifest); err != nil {
				return err
			}
			if hook == "" {
				return usagef("--webhook-url is missing: where GitHub reaches the proxy before --listen-hooks, https://HOST/webhooks/github")
			}
			if home == "" {
				home = hook
			}
			o.Manifest.Hook.URL, o.Manifest.URL = hook, home
			if public != "" {
				o.Manifest.Callbacks = []string{strings.TrimRight(public, "/") + web.BackPath}
			}
			if name != "" {
				o.Manifest.Name = name
			}
			if len(o.Manifest.Name) > 34 {
				return usagef("--name: GitHub takes at most 34 characters")
			}
			if _, err := o.Manifest.Form(); err != nil {
				return usageError{err}
			}
			if !strings.HasPrefix(hook, "https://") && !strings.HasPrefix(hook, "http://127.0.0.1") {
				return usagef("--webhook-url: expected an https address, but found %q", hook)
			}
			if o.Store, err = newapp.OpenStore(dir, overwrite); err != nil {
				return usageError{err}
			}
			o.Out = cmd.OutOrStdout()
			made, err := newapp.Run(cmd.Context(), o)
			if made.ID != 0 {
				fmt.Fprintf(o.Out, "\nThe App %s (%d) of %s is made. Kept, for this account's eyes only:\n  %s\n  %s\n  %s\n  %s\nNext: install it on your repositories (%s/installations/new), then\n  set -a; . %s; set +a\n  inspect doctor\n  inspect serve …\n",
					redact.Visible(made.Name), made.ID, redact.Visible(made.Owner), o.Store.Path(newapp.KeyFile), o.Store.Path(newapp.SecretFile), o.Store.Path(newapp.ClientFile), o.Store.Path(newapp.EnvFile),
					redact.Visible(made.URL), o.Store.Path(newapp.EnvFile))
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Org, "org", "", "organization that is to own the App (default: your own account)")
	f.StringVar(&hook, "webhook-url", "", "address GitHub sends webhooks to, https://HOST/webhooks/github")
	f.StringVar(&public, "public-url", "", "address of people's pages, as of inspect serve: who signs in there comes back to it (default: nobody can sign in until you add a callback URL, PUBLIC-URL"+web.BackPath+", to the App)")
	f.StringVar(&home, "home", "", "the App's home page (default: as --webhook-url)")
	f.StringVar(&name, "name", "", "name to propose; no two Apps on GitHub have the same (default: Inspect)")
	f.StringVar(&dir, "dir", ".", "directory to keep the App in")
	f.BoolVar(&overwrite, "overwrite", false, "replace the files of another App in --dir")
	f.StringVar(&o.API, "github-api", "https://api.github.com", "base address of the REST API (GHES: https://HOST/api/v3, data residency: https://api.NAME.ghe.com)")
	f.StringVar(&o.Git, "github-git", "", "base address of GitHub's pages and repositories (default: follows from --github-api)")
	f.StringVar(&o.Listen, "listen", "127.0.0.1:0", "loopback address of the page")
	f.DurationVar(&o.Timeout, "timeout", 30*time.Minute, "how long to wait; GitHub keeps what it tells for an hour")
	return withEnvironment(cmd)
}
