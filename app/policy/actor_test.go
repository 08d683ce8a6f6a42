package policy

import "testing"

func TestDecideActor(t *testing.T) {
	octocat := Actor{ID: 1, Login: "octocat"}
	hubot := Actor{ID: 2, Login: "hubot[bot]", Bot: true, App: 20}
	rules := ActorRules{OwnAppID: 9}
	tests := []struct {
		name   string
		actor  Actor
		perm   Permission
		need   Need
		rules  ActorRules
		allow  bool
		reason string
	}{
		{"writer", octocat, Permission{Known: true, Read: true, Write: true}, NeedWrite, rules, true, ActorAllowed},
		{"writer reads", octocat, Permission{Known: true, Write: true}, NeedRead, rules, true, ActorAllowed},
		{"reader reads", octocat, Permission{Known: true, Read: true}, NeedRead, rules, true, ActorAllowed},
		{"reader writes", octocat, Permission{Known: true, Read: true}, NeedWrite, rules, false, ActorReadOnly},
		{"stranger reads", octocat, Permission{Known: true}, NeedRead, rules, false, ActorNoAccess},
		{"not asked", octocat, Permission{Write: true}, NeedWrite, rules, false, ActorNotChecked},
		{"zero need is not read", octocat, Permission{Known: true, Read: true}, "", rules, false, ActorReadOnly},
		{"no id", Actor{Login: "octocat"}, Permission{Known: true, Write: true}, NeedWrite, rules, false, ActorUnknown},
		{"no login", Actor{ID: 1}, Permission{Known: true, Write: true}, NeedWrite, rules, false, ActorUnknown},
		{"negative id", Actor{ID: -1, Login: "octocat"}, Permission{Known: true, Write: true}, NeedWrite, rules, false, ActorUnknown},
		{"bot with write", hubot, Permission{Known: true, Write: true}, NeedWrite, rules, false, ActorBot},
		{"bot on the list", hubot, Permission{Known: true, Write: true}, NeedWrite, ActorRules{AllowedApps: []int64{20}}, true, ActorAllowed},
		{"bot on the list without access", hubot, Permission{Known: true}, NeedWrite, ActorRules{AllowedApps: []int64{20}}, false, ActorNoAccess},
		{"bot of another App than the one on the list", Actor{ID: 20, Login: "hubot[bot]", Bot: true, App: 21}, Permission{Known: true, Write: true}, NeedWrite, ActorRules{AllowedApps: []int64{20}}, false, ActorBot},
		{"bot of no known App", Actor{ID: 2, Login: "hubot[bot]", Bot: true}, Permission{Known: true, Write: true}, NeedWrite, ActorRules{AllowedApps: []int64{0, 2}}, false, ActorBot},
		{"a person through our App", Actor{ID: 1, Login: "octocat", App: 9}, Permission{Known: true, Write: true}, NeedWrite, rules, false, ActorOwnEcho},
		{"a person through another App", Actor{ID: 1, Login: "octocat", App: 20}, Permission{Known: true, Write: true}, NeedWrite, rules, true, ActorAllowed},
		{"ourselves", Actor{ID: 3, Login: "inspect[bot]", Bot: true, App: 9}, Permission{Known: true, Write: true}, NeedWrite, rules, false, ActorOwnEcho},
		{"ourselves on the list", Actor{ID: 3, Login: "inspect[bot]", Bot: true, App: 9}, Permission{Known: true, Write: true}, NeedWrite, ActorRules{OwnAppID: 9, AllowedApps: []int64{9}}, false, ActorOwnEcho},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := DecideActor(tt.actor, tt.perm, tt.need, tt.rules)
			if d.Allow != tt.allow || d.Reason != tt.reason {
				t.Errorf("got %v, %q; want %v, %q", d.Allow, d.Reason, tt.allow, tt.reason)
			}
			if d.Words == "" {
				t.Error("no words")
			}
		})
	}
}
