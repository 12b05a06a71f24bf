package control

// WebStart is where the page is to be until the service ends: ADDRESS:PORT, or unix:/PATH. "" is where the settings
// say, or else DefaultWeb.
type WebStart struct {
	Listen string `json:"listen,omitempty"`
}

// DefaultWeb is where the page is if nobody says.
const DefaultWeb = "127.0.0.1:7070"

// WebState is where the page is, "" while it is off.
type WebState struct {
	Listen string `json:"listen"`
}

// WebLink is a URL that lets one browser in, once, with the rights of who has asked for it.
type WebLink struct {
	URL     string `json:"url"`
	Expires Time   `json:"expires_at"` // of the link; what it lets in stays for 12 hours
}
