// With this file Go accepts functions without a body, as in early.go.
