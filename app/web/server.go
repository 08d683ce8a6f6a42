package web

import (
	"net/http"
	"time"
)

// NewServer returns a server with the timeouts both listeners want. There is no
// write timeout: long polls and downloads take their time, and end with their
// client.
func NewServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
	}
}
