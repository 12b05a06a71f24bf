//go:build unix

package register

import (
	"html"
	"path/filepath"
	"strings"

	"github.com/queuectl/queuectl/packaging"
	"github.com/queuectl/queuectl/queue"
)

// rootsAlone says who may do something to the system's service.
const rootsAlone = "only root can %s the system's service; run: sudo queuectl service %[1]s; or use --user for your own service"

// packaged and packagedClient are the paths of the programs in the files of the packages.
const (
	packaged       = "/usr/libexec/queuectl/queuectld"
	packagedClient = "/usr/bin/queuectl"
)

// text is a file of the packages as it has to be here.
func (o Options) text(name string) string {
	raw, err := packaging.Files.ReadFile(name)
	if err != nil {
		panic("register: " + err.Error())
	}
	return strings.NewReplacer(
		packaged, o.Program,
		packagedClient, o.Client,
		"@STATE@", o.Places.State,
		"@STATE_HOME@", filepath.Dir(o.Places.State),
		"@CONFIG_HOME@", filepath.Dir(filepath.Dir(o.Places.File)),
		"@PROGRAM@", o.Program,
		"@ARGUMENTS@", o.arguments(),
	).Replace(string(raw))
}

// arguments are those of serve, as launchd's file has them: the user's own service
// needs none, for it finds its places by itself.
func (o Options) arguments() string {
	if o.User {
		return ""
	}
	var b strings.Builder
	for _, word := range o.serve()[1:] {
		b.WriteString("\t\t<string>")
		b.WriteString(html.EscapeString(word)) // what it writes is XML too
		b.WriteString("</string>\n")
	}
	return b.String()
}

// plain reports that paths hold nothing that means something in a unit or in XML.
func (o Options) plain() error {
	special := func(r rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._+-", r)
	}
	for _, path := range []string{o.Program, o.Client, o.Places.State, o.Places.Socket, o.Places.File} {
		if !filepath.IsAbs(path) || strings.ContainsFunc(path, special) {
			return queue.Errorf(queue.CodeInvalid, "the path %q cannot be used in a service file; use an absolute path with only letters, digits and /._+-", path)
		}
	}
	return nil
}
