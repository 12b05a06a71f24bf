package control

import "context"

// WebAPI controls the web page.
type WebAPI interface {
	// WebStart serves the web page until the service ends, overriding the settings. WebStop turns
	// the page off.
	WebStart(ctx context.Context, p WebStart) (WebState, error)
	WebStop(ctx context.Context, p NoParams) (WebState, error)
	// WebOpen returns a link with which the caller can open the page. The link is valid for one
	// minute.
	WebOpen(ctx context.Context, p NoParams) (WebLink, error)
}

// WebStart is the address at which to serve the web page until the service ends: ADDRESS:PORT, or
// unix:/PATH. "" means the address in the settings or, if they have none, DefaultWebAddress.
type WebStart struct {
	Listen string `json:"listen,omitempty"`
}

// DefaultWebAddress is the default address of the web page.
const DefaultWebAddress = "127.0.0.1:7070"

// WebState is the address of the web page, "" while the page is off.
type WebState struct {
	Listen string `json:"listen"`
}

// WebLink is a URL that signs one browser in, once, with the rights of the user who requested it.
type WebLink struct {
	URL     string `json:"url"`
	Expires Time   `json:"expires_at"` // expiry of the link; the browser stays signed in for 12 hours
}
