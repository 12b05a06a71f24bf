//go:build unix

package install

import (
	"fmt"
	"html"
	"path/filepath"
	"strings"

	"github.com/queuectl/queuectl/packaging"
	"github.com/queuectl/queuectl/queue"
)

// adminOnlyMessage is the message for a caller without the rights to manage the system's service.
const adminOnlyMessage = "only root can %s the system's service; run: sudo queuectl service %[1]s; or use --user " +
	"for your own service"

// packagedDaemonPath and packagedClientPath are the paths of queuectld and queuectl in the files of the packages.
const (
	packagedDaemonPath = "/usr/libexec/queuectl/queuectld"
	packagedClientPath = "/usr/bin/queuectl"
)

// adaptedPackageFileText returns the text of a file from the packages, but with the paths of this installation.
func (o Options) adaptedPackageFileText(fileName string) string {
	raw, err := packaging.InstalledFiles.ReadFile(fileName)
	if err != nil {
		panic("install: " + err.Error())
	}
	return strings.NewReplacer(
		packagedDaemonPath, o.DaemonPath,
		packagedClientPath, o.ClientPath,
		"@STATE@", o.ServicePaths.StateDir,
		"@STATE_HOME@", filepath.Dir(o.ServicePaths.StateDir),
		"@CONFIG_HOME@", filepath.Dir(filepath.Dir(o.ServicePaths.SettingsFile)),
		"@PROGRAM@", o.DaemonPath,
		"@ARGUMENTS@", o.serveArgumentsXML(),
	).Replace(string(raw))
}

// serveArgumentsXML returns the arguments of "queuectld serve" as XML for launchd's file. The user's own service
// needs no arguments, because it uses the default paths.
func (o Options) serveArgumentsXML() string {
	if o.IsUserService {
		return ""
	}
	var b strings.Builder
	for _, word := range o.serveArguments()[1:] {
		fmt.Fprintf(&b, "\t\t<string>%s</string>\n", html.EscapeString(word)) // HTML escapes are valid XML
	}
	return b.String()
}

// checkPathCharacters returns an error if a path contains a character with a special meaning in a unit or in XML.
func (o Options) checkPathCharacters() error {
	special := func(r rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._+-", r)
	}
	for _, path := range []string{o.DaemonPath, o.ClientPath, o.ServicePaths.StateDir, o.ServicePaths.SocketPath,
		o.ServicePaths.SettingsFile} {
		if !filepath.IsAbs(path) || strings.ContainsFunc(path, special) {
			return queue.Errorf(queue.CodeInvalid, "the path %q cannot be used in a service file; move the file or directory "+
				"to an absolute path with only letters, digits and /._+-, then install again", path)
		}
	}
	return nil
}
