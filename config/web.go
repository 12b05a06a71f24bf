package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
)

// webHosts is the name of a setting whose value is a list of hosts.
const webHosts = "web.hosts"

// isList reports whether the value of a setting is a list of words. In a settings file, such a value
// may be a TOML array.
func isList(name string) bool { return name == webHosts || strings.HasPrefix(name, accessTable+".") }

// webKeys returns the settings of the web page.
func webKeys() []Key {
	return []Key{
		textOrNone("web.listen", "address of the web page: unix:/PATH, or a loopback ADDRESS:PORT like 127.0.0.1:7070; "+
			"none means no page; any other address also needs the setting web.hosts, and TLS: web.tls_cert with web.tls_key, "+
			"or web.tls = \"proxy\"", func(s *Settings) *string { return &s.WebListen }, whereToListen),
		choice("web.anonymous", none, "what users of this machine can see on the page without signing in: none (nothing) "+
			"or read (what the right \"read\" allows)", func(s *Settings) *string { return &s.WebAnonymous }, none, "read"),
		choice("web.metrics_anonymous", "false", "whether users of this machine can read /metrics without signing in",
			func(s *Settings) *string { return &s.WebMetrics }, "false", "true"),
		{webHosts, none, "host names of the web page in addition to the loopback names, like [\"queue.example.org\"]; " +
			"links use the first one; in an environment variable or on the command line, separate names with spaces", false,
			setWebHosts, func(s *Settings) string { return s.WebHosts }, nil},
		textOrNone("web.tls_cert", "file with the TLS certificate of the web page and its intermediate certificates; "+
			"to use a renewed certificate, run: queuectl reload", func(s *Settings) *string { return &s.WebTLSCert }, wholePath),
		textOrNone("web.tls_key", "file with the private key for the certificate in the setting web.tls_cert",
			func(s *Settings) *string { return &s.WebTLSKey }, wholePath),
		choice("web.tls", none, `"proxy" if a reverse proxy handles TLS and forwards requests to the page; otherwise "none"`,
			func(s *Settings) *string { return &s.WebTLS }, none, "proxy"),
	}
}

// textOrNone returns a setting that is a text. The text "none" is stored as "".
func textOrNone(name, doc string, at func(*Settings) *string, check func(string) error) Key {
	return Key{name, none, doc, false, func(s *Settings, text string) error {
		switch {
		case text == none:
			text = ""
		case text == "":
			return fmt.Errorf("must not be empty; to leave the setting unset, use the word none")
		case len(text) > 4096 || strings.ContainsAny(text, "\x00\n"):
			return fmt.Errorf("must be a single line of at most 4096 bytes")
		case check != nil:
			if err := check(text); err != nil {
				return err
			}
		}
		*at(s) = text
		return nil
	}, func(s *Settings) string { return orNone(*at(s)) }, nil}
}

func orNone(text string) string {
	return cmp.Or(text, none)
}

func whereToListen(text string) error {
	if path, unix := strings.CutPrefix(text, "unix:"); unix {
		return wholePath(path)
	}
	if _, err := netip.ParseAddrPort(text); err != nil {
		return fmt.Errorf("%q is not an address; use ADDRESS:PORT like 127.0.0.1:7070, or unix:/PATH", text)
	}
	return nil
}

func wholePath(text string) error {
	if !filepath.IsAbs(text) {
		return fmt.Errorf("%q is not an absolute path; use the full path", text)
	}
	return nil
}

func setWebHosts(s *Settings, text string) error {
	hosts := strings.Fields(strings.ToLower(text))
	if text == none {
		hosts = nil
	}
	for i, h := range hosts {
		if ip, err := netip.ParseAddr(strings.Trim(h, "[]")); err == nil {
			hosts[i] = ip.String()
			continue
		}
		if len(h) > 253 || h[0] == '-' || strings.ContainsFunc(h, func(c rune) bool {
			return !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || strings.ContainsRune(".-_", c))
		}) {
			return fmt.Errorf("%q is not a host name; leave out the port, and separate several names by spaces", h)
		}
	}
	switch {
	case len(hosts) > maxNames:
		return fmt.Errorf("too many host names (%d); the maximum is %d", len(hosts), maxNames)
	case len(hosts) == 0 && text != none:
		return fmt.Errorf("the list must not be empty; to allow no hosts, write \"none\"")
	}
	s.WebHosts = orNone(strings.Join(hosts, " "))
	return nil
}

// Hosts returns the host names of the web page. They do not include the loopback names, which are
// always valid.
func (s *Settings) Hosts() []string {
	if s.WebHosts == none {
		return nil
	}
	return strings.Fields(s.WebHosts)
}
