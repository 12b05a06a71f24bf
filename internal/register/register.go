// Package register makes queuectl a service of the operating system, by the files that
// packages install too, and takes that back.
package register

import (
	"html"
	"path/filepath"
	"strings"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/packaging"
	"github.com/queuectl/queuectl/queue"
)

// Name is what the service is called.
const Name = "queuectl"

// Options say which service is meant.
type Options struct {
	User    bool          // the user's own, else the system's
	Program string        // its path
	Places  config.Places // of that service
}

// packaged is the program's path in the files of the packages.
const packaged = "/usr/bin/queuectl"

// text is a file of the packages as it has to be here.
func (o Options) text(name string) string {
	raw, err := packaging.Files.ReadFile(name)
	if err != nil {
		panic("register: " + err.Error())
	}
	return strings.NewReplacer(
		packaged, o.Program,
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

// serve are the words after the program's name that make it the system's service. Where
// root says less, its places are others.
func (o Options) serve() []string {
	return []string{"serve", "--dir", o.Places.State, "--socket", o.Places.Socket, "--config", o.Places.File}
}

// plain reports that paths hold nothing that means something in a unit or in XML.
func (o Options) plain() error {
	for _, path := range []string{o.Program, o.Places.State, o.Places.Socket, o.Places.File} {
		if !filepath.IsAbs(path) || strings.ContainsFunc(path, special) {
			return queue.Errorf(queue.CodeInvalid, "the path %q cannot stand in the file that registers a service: it has to be absolute, of letters, digits and /._+-", path)
		}
	}
	return nil
}

func special(r rune) bool {
	return r > 127 || !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._+-", r)
}

// NotRegistered is what verbs on a service say that is not.
func (o Options) NotRegistered() error {
	flag := ""
	if o.User {
		flag = " --user"
	}
	return queue.Errorf(queue.CodeNotFound, "no service is registered; register one with: queuectl service install%s", flag)
}

// allowed says who may, unless it is the user with this uid.
func (o Options) allowed(verb string, uid int) error {
	if o.User || uid == 0 {
		return nil
	}
	return queue.Errorf(queue.CodeDenied, "the system's service is root's to %s: sudo queuectl service %[1]s; --user means a service of your own", verb)
}

// act does something with a service that has to be registered.
func (o Options) act(verb string, uid int, registered bool, do func() error) error {
	if !registered {
		return o.NotRegistered()
	}
	if err := o.allowed(verb, uid); err != nil {
		return err
	}
	return do()
}
