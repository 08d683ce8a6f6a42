// Package webhook receives GitHub's deliveries. An HTTP request from anyone
// comes in; what goes out is a stored delivery and a job for it, in one
// transaction, and the answer 202. It verifies, persists and answers, nothing
// else: what a delivery means is found out later by package intake.
package webhook
