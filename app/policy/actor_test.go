package policy

import "testing"

func TestDecideActor(t *testing.T) {
	octocat := Actor{ID: 1, Login: "octocat"}
	hubot := Actor{ID: 2, Login: "hubot[bot]", Bot: true}
	rules := ActorRules{OwnBotID: 9}
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
		{"bot on the list", hubot, Permission{Known: true, Write: true}, NeedWrite, ActorRules{AllowedBots: []int64{2}}, true, ActorAllowed},
		{"bot on the list without access", hubot, Permission{Known: true}, NeedWrite, ActorRules{AllowedBots: []int64{2}}, false, ActorNoAccess},
		{"ourselves", Actor{ID: 9, Login: "inspect[bot]", Bot: true}, Permission{Known: true, Write: true}, NeedWrite, rules, false, ActorOwnEcho},
		{"ourselves on the list", Actor{ID: 9, Login: "inspect[bot]"}, Permission{Known: true, Write: true}, NeedWrite, ActorRules{OwnBotID: 9, AllowedBots: []int64{9}}, false, ActorOwnEcho},
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
