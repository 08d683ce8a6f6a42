// Package storage keeps what must survive any machine: rows in Postgres and
// evidence in blobs. SQL lives in queries/ and is generated into this package;
// the schema lives in migrations/. What comes in has been checked by the room
// that decides about it; what goes out are rows and streams, with typed errors
// where a caller decides on them. It also runs the private Postgres of an
// installation that brings none of its own.
package storage
