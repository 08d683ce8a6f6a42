package redact

// Forms are the spellings of a secret that are replaced, the value itself
// first. Who has to find them in bytes that are no text looks for them itself.
func Forms(secret string) []string { return forms(secret) }
