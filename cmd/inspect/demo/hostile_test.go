package demo

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"
)

// everyWay makes git, the shell or a package manager run a command whenever
// somebody uses the repository or the home it was left in. RUN is the command.
const everyWay = `
mkdir -p .git/hooks "$HOME/.config/git" "$HOME/bin" "$HOME/.ssh"
for h in applypatch-msg pre-applypatch post-applypatch pre-commit prepare-commit-msg commit-msg post-commit pre-rebase post-checkout post-merge pre-push pre-receive update post-receive post-update push-to-checkout pre-auto-gc post-rewrite fsmonitor-watchman post-index-change reference-transaction proc-receive; do
  printf '#!/bin/sh\nRUN hook-%s\nexit 0\n' $h >.git/hooks/$h; chmod +x .git/hooks/$h
done
cp -r .git/hooks "$HOME/hooks"
set -- core.fsmonitor core.sshCommand core.pager core.editor core.askPass core.gitProxy core.alternateRefsCommand sequence.editor credential.helper gpg.program gpg.ssh.program diff.external diff.x.command diff.x.textconv filter.x.clean filter.x.smudge filter.x.process filter.lfs.process filter.lfs.smudge merge.x.driver uploadpack.packObjectsHook remote.origin.uploadpack remote.origin.receivepack alias.status alias.fetch alias.log pager.log interactive.diffFilter trailer.x.command mergetool.x.cmd difftool.x.cmd submodule.x.update lfs.customtransfer.x.path
for k; do
  v='RUN config-'$k
  case $k in credential.helper|alias.*|submodule.*) v='!'$v;; esac
  git config $k "$v" || true
  git config --global $k "$v" || true
done
git config core.hooksPath "$HOME/hooks"
git config protocol.ext.allow always
git config --global protocol.ext.allow always
git config commit.gpgSign true
git config submodule.recurse true
git config lfs.url https://evil.example/lfs
git config include.path /workspace/evil.config
git config url.'ext::sh -c RUN% insteadof'.insteadOf https://
git config extensions.worktreeConfig true
printf '[core]\n\tfsmonitor = RUN worktree\n' >.git/config.worktree
printf '* filter=x diff=x merge=x\n' >.git/info/attributes
printf '/etc\n/run/inspect/mirror.git/objects\n' >.git/objects/info/alternates
for f in .bashrc .profile .bash_profile .zshenv .npmrc .netrc .ssh/config .config/git/config.sh; do printf 'RUN home\n' >"$HOME/$f"; done
printf '#!/bin/sh\nRUN path\n' >"$HOME/bin/git"; chmod +x "$HOME/bin/git"; cp "$HOME/bin/git" ./git
`

// hostile is a repository whose three scripts are given.
func hostile(limits, setup, agent, verify string) map[string]string {
	return map[string]string{
		"price.txt": "price=11\n", "setup.sh": setup, "agent.sh": agent, "verify.sh": verify,
		".inspect.yml": "version: 1\nsetup: [sh setup.sh]\nverify: [{name: unit, run: sh verify.sh}]\n" +
			"limits: {memory: 512MiB, pids: 200, disk: 128MiB, " + limits + "}\n" +
			"harness: {kind: command, command: sh agent.sh}\n",
		".gitattributes": "*.txt filter=x diff=x merge=x\n",
		".lfsconfig":     "[lfs]\n\turl = https://evil.example/lfs\n",
		".gitmodules":    "[submodule \"x\"]\n\tpath = x\n\turl = ext::sh -c true\n[submodule \"y\"]\n\tpath = y\n\turl = file:///etc\n",
	}
}

// A hostile repository from its label to its end, through the real serve, node
// daemon, runner, sandboxes and git: whatever it plants, nothing of it runs
// outside of a sandbox, nothing is pushed that policy did not see, and every
// session ends with words.
func TestHostileRepository(t *testing.T) {
	// Everybody on this machine may write here, and no sandbox sees it.
	outside, err := os.MkdirTemp("", "inspect-outside-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(outside) })
	if err := os.Chmod(outside, 0o777); err != nil {
		t.Fatal(err)
	}
	ran := func(where string) string { return "touch " + outside + "/" + where + "-" }
	plant := func(where string) string { return strings.ReplaceAll(everyWay, "RUN ", ran(where)) }
	const fix = "echo price=10 >price.txt\n"
	commit := fix + "git add -A && git commit -qm fixed\n"
	const check = "grep -q price=10 price.txt\n"
	const escapes = `printf '\033]8;;http://evil.example\007here\033]8;;\007 \033]0;title\007\033[2J\033[1A \342\200\256gpj \0 \377 @octocat <img src=x> ::error::x\n'` + "\n"
	type session struct {
		files         map[string]string
		state, reason string
	}
	sessions := map[string]session{
		"setup":     {hostile("timeout: 2m", plant("setup"), commit, check), "failed", "snapshot_refused"},
		"ways":      {hostile("timeout: 2m", "true\n", commit+plant("agent")+"rm -f git\n", check+plant("verify")), "delivered", ""},
		"uncommit":  {hostile("timeout: 2m", "true\n", fix+plant("agent")+"rm -f git\n", check), "delivered", ""},
		"flood":     {hostile("timeout: 5m", "true\n", commit+escapes+"yes '\033[2Jflood' | head -c 50000000\n", escapes+"head -c 1000000000 /dev/zero\n"+check), "delivered", ""},
		"names":     {hostile("timeout: 2m", "true\n", fix+escapes+`for n in "$(printf 'new\nline')" "$(printf 'esc\033[2J')" "$(printf 'bidi\342\200\256')" "$(printf '.g\315\217it')"; do echo x >"$n"; done; git add -A; git commit -qm "$(printf 'esc\033]0;x\007 @octocat \342\200\256')"`+"\n", check), "failed", "file_name"},
		"reports":   {hostile("timeout: 2m", "true\n", fix+`mkdir -p reports; ln -s /proc/self/environ reports/junit.xml; mkfifo reports/fifo.xml; ln -s ../../../../var/lib/inspect reports/spool; mkdir reports/dir.xml; truncate -s 1T .git/sparse || true`+"\n", check), "failed", "link"},
		"submodule": {hostile("timeout: 2m", "true\n", fix+`printf '[submodule "z"]\n\tpath = z\n\turl = -u./x\n' >.gitmodules; git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),z; git add .gitmodules price.txt; git commit -qm x`+"\n", check), "failed", ""},
		"lfs":       {hostile("timeout: 2m", "true\n", fix+`printf '[lfs]\n\turl = https://other.example/\n' >.lfsconfig; git add -A; git commit -qm x`+"\n", check), "stopped", "rejected"}, // a person says no to what is protected
		// Neither the home nor the programs that the agent made are those of verification.
		"cheat":   {hostile("timeout: 2m", "true\n", `mkdir -p "$HOME/bin" "$HOME/.local/bin"; for f in grep sh; do printf '#!/bin/sh\nexit 0\n' | tee "$HOME/bin/$f" >"$HOME/.local/bin/$f"; done; chmod -R +x "$HOME"; echo 'grep() { :; }' | tee "$HOME/.profile" "$HOME/.bashrc" "$HOME/.shrc" >/dev/null; echo x >x; git add x; git commit -qm x`+"\n", check), "failed", "verify_failed"},
		"daemons": {hostile("timeout: 2m", "(setsid sleep 10000 &)\n", commit+"(setsid sleep 10001 &)\n", check+"(setsid sleep 10002 &)\n"), "delivered", ""},
		"no-git":  {hostile("timeout: 2m", "true\n", fix+"mv .git /tmp/git; ln -s /tmp/git .git\n", check), "failed", ""},
	}
	repositories := map[string]map[string]string{}
	for name, s := range sessions {
		repositories[name] = s.files
	}
	s := openStage(t, repositories)
	ctx := patienceOf(t, 12*time.Minute)
	issues := map[string]int{}
	for name := range sessions {
		issues[name] = s.ask(name, "Too dear")
	}
	for name, want := range sessions {
		id := s.of(ctx, name, issues[name])
		said := 1
		if want.reason == "rejected" {
			s.until(ctx, id, "waiting for a person", func(v sessionView) bool { return v.State == "needs_approval" })
			if _, err := s.github.Comment(octocat+"/"+name, issues[name], octocat, "/inspect reject"); err != nil {
				t.Fatal(err)
			}
			said = 2
		}
		v := s.until(ctx, id, "over", over)
		t.Logf("%s: %s (%s: %s)", name, v.State, v.Reason, v.Words)
		if v.State != want.state || want.reason != "" && v.Reason != want.reason {
			t.Errorf("%s: %s (%s: %s), want %s (%s)", name, v.State, v.Reason, v.Words, want.state, want.reason)
		}
		clean(t, name+": words", v.Words)
		pulls := pullsOf(t, s.github, name)
		if (want.state == "delivered") != (len(pulls) == 1) {
			t.Errorf("%s: %d pull requests", name, len(pulls))
		}
		for _, p := range pulls {
			clean(t, name+": pull request", p.Title+p.Body)
			diff, err := s.github.Diff(octocat+"/"+name, p.Number)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Count(diff, "diff --git") != 1 || !strings.Contains(diff, "price.txt") {
				t.Errorf("%s: the pull request changes more than the price:\n%.2000s", name, diff)
			}
		}
		comments, err := s.github.Comments(octocat+"/"+name, issues[name])
		if err != nil || len(comments) != said {
			t.Errorf("%s: comments %+v, %v", name, comments, err)
		}
		for _, c := range comments {
			clean(t, name+": comment", c.Body)
		}
		runs, err := s.github.CheckRuns(octocat + "/" + name)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range runs {
			clean(t, name+": check run", r.Title+r.Summary+r.Text)
		}
	}
	// One push for each pull request and none beside, of one commit each.
	pushes := map[string]int{}
	for _, r := range s.github.Requests() {
		if r.FromApp() {
			for range r.Push {
				pushes[r.Path]++
			}
		}
	}
	if len(pushes) != 4 {
		t.Errorf("pushes %v", pushes)
	}
	onlyAllowed(t, s.github)
	for pid, bytes := range memories(t, s.dir) {
		t.Logf("%s: %d MiB at most", pid, bytes>>20)
		if bytes > 512<<20 {
			t.Errorf("process %s took %d MiB", pid, bytes>>20)
		}
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("ran outside of a sandbox: %v, %v", left, err)
	}
}

// clean asks that a text for people cannot play with their terminal or page.
func clean(t *testing.T, what, text string) {
	t.Helper()
	for _, r := range text {
		if r != '\n' && unicode.IsControl(r) || unicode.In(r, unicode.Bidi_Control, unicode.Other_Default_Ignorable_Code_Point) || r == unicode.ReplacementChar {
			t.Errorf("%s holds %q: %.300q", what, r, text)
			return
		}
	}
}

// memories is the most memory that each process of an installation had.
func memories(t *testing.T, dir string) map[string]int64 {
	t.Helper()
	out := map[string]int64{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil || !strings.Contains(string(line), dir) || !strings.Contains(string(line), "inspect") {
			continue
		}
		b, err := os.ReadFile(filepath.Join("/proc", e.Name(), "status"))
		_, rest, ok := strings.Cut(string(b), "VmHWM:")
		if err != nil || !ok {
			continue
		}
		kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		words := strings.Split(string(line), "\x00")
		out[fmt.Sprintf("%s (%s)", e.Name(), strings.Join(words[:min(2, len(words))], " "))] = kib << 10
	}
	if len(out) < 2 {
		t.Errorf("serve and its node daemon were not found: %v", out)
	}
	return out
}
