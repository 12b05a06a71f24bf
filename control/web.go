package control

import "context"

// WebAPI controls the web page.
type WebAPI interface {
	// WebStart serves the web page until the service ends, whatever the settings say. WebStop stops serving it.
	WebStart(ctx context.Context, p WebStart) (WebState, error)
	WebStop(ctx context.Context, p NoParams) (WebState, error)
	// WebOpen returns a link that opens the page and signs the caller in. The link is valid for one minute.
	WebOpen(ctx context.Context, p NoParams) (WebLink, error)
}

// WebStart holds the address of the web page: ADDRESS:PORT or unix:/PATH. "" means the address in the settings;
// if the settings have none, it means DefaultWebAddress.
type WebStart struct {
	Listen string `json:"listen,omitempty"`
}

// DefaultWebAddress is the default address of the web page.
const DefaultWebAddress = "127.0.0.1:7070"

// WebState holds the address of the web page; "" while the page is off.
type WebState struct {
	Listen string `json:"listen"`
}

// WebLink is a URL that signs a browser in. It works once, and gives the browser the rights of the user who
// requested it.
type WebLink struct {
	URL     string `json:"url"`
	Expires Time   `json:"expires_at"` // when the link expires; the browser stays signed in for 12 hours
}
