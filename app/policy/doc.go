// Package policy decides: may this actor do this, may this change be
// published, what may a repository ask for above the operator's floor. Facts come in, decisions with reasons go out; nothing is fetched
// here and nothing is done. It is pure, and what it is not told it denies.
package policy
