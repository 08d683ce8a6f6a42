package approve

import (
	"regexp"
	"strings"
)

// Button of a check run. It says in their identifier, of at most twenty characters,
// what they answer. GitHub sends nothing else with a press of one but the run
// and its external id.
type Button struct {
	Session string
	Digest  string // its first digits
	Approve bool
}

// buttonDigest is how many digits of a digest fit beside the word.
const buttonDigest = 12

var (
	buttonForm   = regexp.MustCompile(`^(approve|reject)-([0-9a-f]{12})$`)
	externalForm = regexp.MustCompile(`^([a-z2-7]{10})/approval/[0-9a-f]{12}$`)
)

// ExternalID is what a check run about an approval is found by.
func ExternalID(session, digest string) string {
	return session + "/approval/" + digest[:min(len(digest), buttonDigest)]
}

// Identifier is that of a button.
func Identifier(approve bool, digest string) string {
	word := "reject-"
	if approve {
		word = "approve-"
	}
	return word + digest[:min(len(digest), buttonDigest)]
}

// ReadButton says what the press of a button answers; false if it is none of ours.
func ReadButton(externalID, identifier string) (Button, bool) {
	run, button := externalForm.FindStringSubmatch(externalID), buttonForm.FindStringSubmatch(identifier)
	if run == nil || button == nil || !strings.HasSuffix(externalID, "/"+button[2]) {
		return Button{}, false
	}
	return Button{Session: run[1], Digest: button[2], Approve: button[1] == "approve"}, true
}
