// Package web serves two of the three listeners: the machines' API (runners
// and node daemons) and people's pages. In come HTTP requests from strangers;
// out go calls of the scheduler's own functions for machines that proved who
// they are, and read-only pages for people who hold the access token.
//
// machines*.go bounds and decodes what machines send and decides nothing: who a
// bearer is and what it may do is the scheduler's to say. pages*.go never
// writes to the database; everything an agent or a stranger wrote is shown
// escaped, or given away as a download.
package web
