package config

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
)

// webHostsSettingName is the name of a setting whose value is a list of hosts.
const webHostsSettingName = "web.hosts"

// isListSetting reports whether the value of a setting is a list of words. In a settings file, such a value
// may be a TOML array.
func isListSetting(name string) bool {
	return name == webHostsSettingName || strings.HasPrefix(name, accessTableName+".")
}

func checkListenAddress(address string) error {
	if path, unix := strings.CutPrefix(address, "unix:"); unix {
		return checkAbsolutePath(path)
	}
	if _, err := netip.ParseAddrPort(address); err != nil {
		return fmt.Errorf("%q is not an address; use ADDRESS:PORT like 127.0.0.1:7070, or unix:/PATH", address)
	}
	return nil
}

func checkAbsolutePath(path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("%q is not an absolute path; use the full path", path)
	}
	return nil
}

func parseWebHosts(text string) (string, error) {
	hosts := strings.Fields(strings.ToLower(text))
	for i, h := range hosts {
		if ip, err := netip.ParseAddr(strings.Trim(h, "[]")); err == nil {
			hosts[i] = ip.String()
			continue
		}
		if len(h) > 253 || h[0] == '-' || strings.ContainsFunc(h, func(c rune) bool {
			return !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || strings.ContainsRune(".-_", c))
		}) {
			return "", fmt.Errorf("%q is not a host name; leave out the port, and separate several names by spaces", h)
		}
	}
	switch {
	case len(hosts) > maxNamesPerAccessList:
		return "", fmt.Errorf("too many host names (%d); the maximum is %d", len(hosts), maxNamesPerAccessList)
	case len(hosts) == 0:
		return "", fmt.Errorf("the list must not be empty; to allow no hosts, write \"none\"")
	}
	return strings.Join(hosts, " "), nil
}

// WebHostNames returns the host names under which users may open the web page. The loopback names are always valid
// and not in the list.
func (s *Settings) WebHostNames() []string { return strings.Fields(s.WebHosts) }
