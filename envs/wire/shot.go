package wire

// Screenshot is a page to take a picture of, inside a sandbox.
type Screenshot struct {
	URL      string `json:"url"`
	Width    int    `json:"width"`  // of the window, in CSS pixels
	Height   int    `json:"height"` // likewise
	WaitFor  string `json:"wait_for,omitempty"`
	FullPage bool   `json:"full_page,omitempty"`
}

// Shot is what the browser said about a page. It is made where code under test
// runs with the same rights: it is no more to be believed than a report of tests.
type Shot struct {
	URL      string `json:"url"`   // that was asked for
	Final    string `json:"final"` // where it led
	Title    string `json:"title,omitempty"`
	Status   int    `json:"status,omitempty"` // of the page's own answer; 0: there was none
	Width    int    `json:"width"`            // of the window, in CSS pixels
	Height   int    `json:"height"`
	FullPage bool   `json:"full_page,omitempty"`
	WaitFor  string `json:"wait_for,omitempty"`
	Browser  string `json:"browser,omitempty"` // "Chrome/156.0.7871.12"
	// Cut: the page goes on below the picture.
	Cut bool `json:"cut,omitempty"`
	// Failed is why the page could not be shown as was asked; empty: it could.
	// There may be a picture all the same.
	Failed string `json:"failed,omitempty"`
	// Errors of the console and exceptions that nobody caught, at most
	// MaxShotLines of MaxShotText bytes; MoreErrors are those left out.
	Errors     []string `json:"errors,omitempty"`
	MoreErrors int      `json:"more_errors,omitempty"`
	// Requests that failed or were answered with a status of 400 or more, bounded
	// likewise.
	Requests     []ShotRequest `json:"requests,omitempty"`
	MoreRequests int           `json:"more_requests,omitempty"`
}

// ShotRequest is one that failed.
type ShotRequest struct {
	URL   string `json:"url"`
	Words string `json:"words"` // "net::ERR_CONNECTION_REFUSED" or "status 404"
}

// Bounds of a Shot and its picture.
const (
	MaxShotLines  = 50
	MaxShotText   = 500       // bytes of each text
	MaxShotJSON   = 256 << 10 // of the whole
	MaxShotBytes  = 10 << 20  // of the picture's file
	MaxShotHeight = 16_384    // pixels; what Chromium can draw at once
	MaxShotWidth  = 4_096
	MaxShotPixels = 10_000_000 // of the picture
)

// Names of the files of a picture, as inspect shot hands them to the runner.
const (
	ShotRecord  = "shot.json"
	ShotPicture = "picture.png"
)
