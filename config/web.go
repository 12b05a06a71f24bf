package config

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
)

// webHosts is the setting whose value is a list of hosts.
const webHosts = "web.hosts"

// isList reports whether a setting is a list of words, which a file may have as one.
func isList(name string) bool { return name == webHosts || strings.HasPrefix(name, accessTable+".") }

// webKeys are the settings of the page.
func webKeys() []Key {
	return []Key{
		textOrNone("web.listen", "where the page is: an ADDRESS:PORT of loopback like 127.0.0.1:7070, unix:/PATH, or none; elsewhere only with tls_cert and tls_key, or tls = \"proxy\", and hosts", func(s *Settings) *string { return &s.WebListen }, whereToListen),
		choice("web.anonymous", nobody, "read lets whoever can reach the page from this machine see what the right read does, without a session; none is nobody", func(s *Settings) *string { return &s.WebAnonymous }, nobody, "read"),
		choice("web.metrics_anonymous", "false", "true lets whoever can reach the page from this machine read /metrics, without a session", func(s *Settings) *string { return &s.WebMetrics }, "false", "true"),
		{webHosts, nobody, "names by which the page is asked for, beside those of loopback, like [\"queue.example.org\"] in the file, and elsewhere with spaces between them; links to it have the first one", false, setWebHosts, func(s *Settings) string { return s.WebHosts }, nil},
		textOrNone("web.tls_cert", "file of the page's certificate, with those that it needs; read when the page is opened", func(s *Settings) *string { return &s.WebTLSCert }, wholePath),
		textOrNone("web.tls_key", "file of its private key", func(s *Settings) *string { return &s.WebTLSKey }, wholePath),
		choice("web.tls", nobody, "proxy says that somebody else has the certificate, and sends its requests here", func(s *Settings) *string { return &s.WebTLS }, nobody, "proxy"),
	}
}

// textOrNone is a setting that is a text, "" for none.
func textOrNone(name, doc string, at func(*Settings) *string, check func(string) error) Key {
	return Key{name, nobody, doc, false, func(s *Settings, text string) error {
		switch {
		case text == nobody:
			text = ""
		case text == "" || len(text) > 4096 || strings.ContainsAny(text, "\x00\n"):
			return fmt.Errorf("is empty, has more than 4096 bytes or several lines; give one line, or the word none")
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
	if text == "" {
		return nobody
	}
	return text
}

func whereToListen(text string) error {
	if path, unix := strings.CutPrefix(text, "unix:"); unix {
		return wholePath(path)
	}
	if _, err := netip.ParseAddrPort(text); err != nil {
		return fmt.Errorf("%q is not an address; give ADDRESS:PORT like 127.0.0.1:7070, or unix:/PATH", text)
	}
	return nil
}

func wholePath(text string) error {
	if !filepath.IsAbs(text) {
		return fmt.Errorf("%q is not an absolute path; give the full path", text)
	}
	return nil
}

func setWebHosts(s *Settings, text string) error {
	hosts := strings.Fields(strings.ToLower(text))
	if text == nobody {
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
			return fmt.Errorf("%q is no name of a host, without a port; several have spaces between them", h)
		}
	}
	switch {
	case len(hosts) > maxNames:
		return fmt.Errorf("has more than %d hosts", maxNames)
	case len(hosts) == 0 && text != nobody:
		return fmt.Errorf("is empty; none is none")
	}
	s.WebHosts = orNone(strings.Join(hosts, " "))
	return nil
}

// Hosts are the names by which the page is asked for beside those of loopback.
func (s *Settings) Hosts() []string {
	if s.WebHosts == nobody {
		return nil
	}
	return strings.Fields(s.WebHosts)
}
