//go:build unix

package install

import (
	"encoding/xml"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/queue"
)

// systemServiceOptions and userServiceOptions select the system's service and a user's own service.
var (
	systemServiceOptions = Options{DaemonPath: "/usr/local/bin/queuectld", ClientPath: "/usr/local/bin/queuectl",
		ServicePaths: config.Paths{StateDir: "/var/lib/queuectl", SocketPath: "/run/queuectl/queuectl.sock",
			SettingsFile: "/etc/queuectl/queuectl.toml"}}
	userServiceOptions = Options{IsUserService: true, DaemonPath: "/home/eve/queuectld", ClientPath: "/home/eve/queuectl",
		ServicePaths: config.Paths{StateDir: "/home/eve/state/queuectl", SocketPath: "/home/eve/state/queuectl/queuectl.sock",
			SettingsFile: "/home/eve/conf/queuectl/queuectl.toml"}}
)

// The units that Install writes differ from those in the packages only in the paths of the programs.
func TestInstalledUnitsMatchPackagedUnits(t *testing.T) {
	for _, name := range []string{"queuectl.service", "queuectl-runner@.service", "queuectl.socket",
		"queuectl-runner.socket", "queuectl.sysusers", "queuectl.tmpfiles"} {
		packages := Options{DaemonPath: packagedDaemonPath, ClientPath: packagedClientPath,
			ServicePaths: systemServiceOptions.ServicePaths}.adaptedPackageFileText(name)
		here := systemServiceOptions.adaptedPackageFileText(name)
		if got := strings.NewReplacer(systemServiceOptions.DaemonPath, packagedDaemonPath, systemServiceOptions.ClientPath,
			packagedClientPath).Replace(here); got != packages {
			t.Errorf("%s: got %s, want %s", name, got, packages)
		}
		if strings.Contains(packages, packagedClientPath) && here == packages {
			t.Errorf("%s names the packaged program", name)
		}
	}
}

// In the files that adaptedPackageFileText returns for the system's service and for a user's service, no placeholder is
// left.
func TestAdaptedFilesContainNoPlaceholders(t *testing.T) {
	for _, o := range []Options{systemServiceOptions, userServiceOptions} {
		for _, name := range []string{"user/queuectl.service", "user/queuectl-runner@.service", "user/queuectl.socket",
			"user/queuectl-runner.socket", "launchd.plist"} {
			text := o.adaptedPackageFileText(name)
			if strings.Contains(text, packagedDaemonPath) || strings.Contains(text, packagedClientPath) || strings.Contains(text,
				"@STATE") ||
				strings.Contains(text, "@CONFIG") || strings.Contains(text, "@PROGRAM") || strings.Contains(text, "@ARG") {
				t.Errorf("%s: %s", name, text)
			}
		}
	}
	unit := userServiceOptions.adaptedPackageFileText("user/queuectl.service")
	for _, line := range []string{
		"Environment=XDG_STATE_HOME=/home/eve/state XDG_CONFIG_HOME=/home/eve/conf\n",
		"ExecStart=/home/eve/queuectld serve --keep-jobs ",
		"ExecReload=/home/eve/queuectl --socket /home/eve/state/queuectl/queuectl.sock reload\n",
	} {
		if !strings.Contains(unit, line) {
			t.Errorf("the user's unit lacks %q:\n%s", line, unit)
		}
	}
}

// The file for launchd is valid XML and starts "queuectld serve" with the right paths.
func TestLaunchdFileIsValidXML(t *testing.T) {
	for _, c := range []struct {
		o    Options
		want []string
	}{
		{systemServiceOptions, []string{"queuectl", "/usr/local/bin/queuectld", "serve", "--dir", "/var/lib/queuectl",
			"--socket",
			"/run/queuectl/queuectl.sock", "--config", "/etc/queuectl/queuectl.toml"}},
		{userServiceOptions, []string{"queuectl", "/home/eve/queuectld", "serve"}},
	} {
		d := xml.NewDecoder(strings.NewReader(c.o.adaptedPackageFileText("launchd.plist")))
		var got []string
		in := false
		for {
			token, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			switch e := token.(type) {
			case xml.StartElement:
				in = e.Name.Local == "string"
			case xml.EndElement:
				in = false
			case xml.CharData:
				if in {
					got = append(got, string(e))
				}
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

// A path is rejected if it contains characters that have a meaning in a unit.
func TestPathsWithUnitSyntaxCharactersAreRejected(t *testing.T) {
	if err := systemServiceOptions.checkPathCharacters(); err != nil {
		t.Error(err)
	}
	for _, path := range []string{"", "queuectl", "/opt/my queue/queuectl", "/opt/%n/queuectl", "/opt/\"q\"", "/opt/{{.}}",
		"/opt/$HOME", "/opt/é"} {
		o := systemServiceOptions
		o.DaemonPath = path
		if err := o.checkPathCharacters(); !errors.Is(err, queue.ErrInvalid) {
			t.Errorf("%q: got %v, want it refused", path, err)
		}
	}
}
