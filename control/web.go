package control

import "context"

// WebAPI controls the web page of the service.
type WebAPI interface {
	// StartWebPage serves the web page until the service ends, even if the page is off in the settings. StopWebPage
	// stops serving it.
	StartWebPage(ctx context.Context, p WebStartParams) (WebState, error)
	StopWebPage(ctx context.Context, p NoParams) (WebState, error)
	// CreateWebLink returns a link that opens the web page and signs the caller in. The link is valid for one minute.
	CreateWebLink(ctx context.Context, p NoParams) (WebLink, error)
}

// WebStartParams holds the parameters of the method web.start. ListenAddress is ADDRESS:PORT or unix:/PATH. If it is
// "", the address in the settings applies or, if the settings have none, DefaultWebAddress.
type WebStartParams struct {
	ListenAddress string `json:"listen,omitempty"`
}

// DefaultWebAddress is the default address of the web page.
const DefaultWebAddress = "127.0.0.1:7070"

// WebState says on which address the web page is served. ListenAddress is "" while the page is off.
type WebState struct {
	ListenAddress string `json:"listen"`
}

// WebLink is a URL that signs a browser in. It can be used once. The browser then has the rights of the user
// who requested the link.
type WebLink struct {
	URL       string `json:"url"`
	ExpiresAt Time   `json:"expires_at"` // when the link expires; the browser stays signed in for 12 hours
}
