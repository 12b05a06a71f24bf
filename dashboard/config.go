package dashboard

import (
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/queuectl/queuectl/queue"
)

// Config contains the address of the web page and the rules for access to it.
type Config struct {
	ListenAddress          string   // ADDRESS:PORT or unix:PATH; "" turns the page off
	ExtraHosts             []string // accepted host names, in addition to the loopback names
	AllowsAnonymousRead    bool     // local clients without a session get the right "read"
	AllowsAnonymousMetrics bool     // local clients without a session may read the metrics
	TLSCertPath            string   // path of the certificate; "" means no TLS
	TLSKeyPath             string
	BehindTLSProxy         bool // a reverse proxy terminates TLS and forwards the requests
}

// Check returns an error if the configuration is invalid. If other machines can reach the page, it needs TLS
// and host names. The error is a *queue.Error with CodeInvalid, and it names the setting.
func (c *Config) Check() error {
	if c.ListenAddress == "" {
		return nil
	}
	path, unix := strings.CutPrefix(c.ListenAddress, "unix:")
	switch {
	case unix && !filepath.IsAbs(path):
		return invalidValue("web.listen", c.ListenAddress, "is not an absolute path; give unix:/PATH")
	case (c.TLSCertPath == "") != (c.TLSKeyPath == ""):
		return queue.InvalidFieldError("web.tls_cert",
			"must be set together with the setting web.tls_key; set both or neither")
	case c.TLSCertPath != "" && c.BehindTLSProxy:
		return queue.InvalidFieldError("web.tls",
			`the value "proxy" means that the proxy has the certificate; unset the settings `+
				"web.tls_cert and web.tls_key")
	case unix:
		return nil
	}
	addr, err := netip.ParseAddrPort(c.ListenAddress)
	switch {
	case err != nil:
		return invalidValue("web.listen", c.ListenAddress,
			"is not an address; give ADDRESS:PORT like 127.0.0.1:7070, or unix:/PATH")
	case addr.Addr().Unmap().IsLoopback():
		return nil
	case c.TLSCertPath == "" && !c.BehindTLSProxy:
		return queue.InvalidFieldError("web.listen",
			"%s is reachable from other machines, so it needs the setting web.hosts, and "+
				"TLS: web.tls_cert with web.tls_key, or web.tls = \"proxy\"", queue.ClipForMessage(c.ListenAddress))
	case len(c.ExtraHosts) == 0:
		return queue.InvalidFieldError("web.hosts",
			"is missing; list the host names under which browsers open the page at %s",
			queue.ClipForMessage(c.ListenAddress))
	}
	return nil
}

// acceptsHost reports whether browsers may open the page under a host name. All names below localhost are accepted,
// because they always mean this machine (RFC 6761, section 6.3).
func (c *Config) acceptsHost(host string) bool {
	switch {
	case host == "localhost", strings.HasSuffix(host, ".localhost"), slices.Contains(c.ExtraHosts, host):
		return true
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && ip.IsLoopback()
}

// isValidHostHeader reports whether a Host header has a valid form: a name or an address, optionally followed by a
// port (RFC 3986, section 3.2).
func isValidHostHeader(hostHeader string) bool {
	host, port := hostHeader, ""
	if at := strings.LastIndexByte(hostHeader, ':'); at > strings.LastIndexByte(hostHeader, ']') {
		host, port = hostHeader[:at], hostHeader[at+1:]
	}
	_, err := strconv.ParseUint(port, 10, 16)
	return host != "" && (port == "" || err == nil) && (host[0] == '[') == strings.Contains(host, ":")
}

// requestHostName returns the host name in a request, without the port.
func requestHostName(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	return strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
}

// forwardingHeaders lists headers that proxies add. A request with one of them does not come directly from the
// client.
var forwardingHeaders = []string{"Forwarded", "X-Real-Ip", "Via", "Cf-Connecting-Ip", "X-Client-Ip",
	"X-Cluster-Client-Ip", "True-Client-Ip", "Fastly-Client-Ip"}

func isForwarded(r *http.Request) bool {
	for name := range r.Header {
		if strings.HasPrefix(name, "X-Forwarded") || slices.Contains(forwardingHeaders, name) {
			return true
		}
	}
	return false
}
