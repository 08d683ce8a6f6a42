package scheduler

import "crypto/ed25519"

func publicKey(w *world) ed25519.PublicKey { return w.key.Public().(ed25519.PublicKey) }
