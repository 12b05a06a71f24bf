package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// StoreSQLite is the value of store for an SQLite file in the state directory.
const StoreSQLite = "sqlite"

// credential is a prefix in store_file. The name of a credential that systemd passes to the service
// follows the prefix.
const credential = "credential:"

// nodeSettings lists the settings that say where the queue is stored, or that belong to one node. They
// cannot be stored in the queue, because several nodes may share the queue.
var nodeSettings = []string{"store", "store_file", "node", "node_labels", "node_lease", "job_tmpdir"}

// PerNode reports whether the setting cannot be stored in the queue; see nodeSettings.
func (k *Key) PerNode() bool { return slices.Contains(nodeSettings, k.Name) }

func storeKey() Key {
	return Key{"store", StoreSQLite, "where the queue is stored: sqlite (a file in the state directory) or " +
		"postgres://USER@HOST/DATABASE (PostgreSQL 14 or later); " + fileOnlyNote + "; " + nextStartNote, true, setStore,
		func(s *Settings) string { return s.Store }, nil}
}

func storeFileKey() Key {
	return textOrNone("store_file", `file with the value of the setting "store", so that the settings contain no password: /PATH, or credential:NAME for a systemd credential; `+fileOnlyNote+"; "+nextStartNote, func(s *Settings) *string { return &s.StoreFile }, func(text string) error {
		name, handed := strings.CutPrefix(text, credential)
		if handed && !queue.ValidID(name) || !handed && !filepath.IsAbs(text) {
			return fmt.Errorf("%q is neither an absolute path nor credential:NAME", text)
		}
		return nil
	})
}

// nodeKeys returns the settings of a node that shares the queue with other nodes.
func nodeKeys() []Key {
	return []Key{
		textOrNone("node", "name of this node among the nodes that share a queue; none means the host name; "+fileOnlyNote+
			"; "+nextStartNote, func(s *Settings) *string { return &s.Node }, func(text string) error {
			if !queue.ValidID(text) || strings.Contains(text, "=") {
				return fmt.Errorf("%q is not a valid node name; use up to 128 letters, digits and . _ @ / -, starting with "+
					"a letter or a digit", text)
			}
			return nil
		}),
		textOrNone("node_labels", "labels of this node, like rack=a disk=ssd; jobs select nodes with --on LABEL=VALUE; "+
			fileOnlyNote, func(s *Settings) *string { return &s.NodeLabels }, checkNodeLabels),
		duration("node_lease", "30s", "how long this node can be out of contact with a shared store before other nodes "+
			"take over its jobs; at least 2s; "+fileOnlyNote+"; "+nextStartNote, 2*time.Second,
			func(s *Settings) *time.Duration { return &s.NodeLease }),
		choice("on_partition", "stop", "what to do with running jobs if this node cannot reach the store for longer than "+
			"the setting node_lease: stop ends them before other nodes start them again; continue lets them run, "+
			"so they may run twice", func(s *Settings) *string { return &s.OnPartition }, "stop", "continue"),
	}
}

// maxNodeLabels is the maximum number of labels in node_labels.
const maxNodeLabels = 64

func checkNodeLabels(text string) error {
	words := strings.Fields(text)
	if len(words) == 0 || len(words) > maxNodeLabels {
		return fmt.Errorf("wrong number of labels (%d); use 1 to %d", len(words), maxNodeLabels)
	}
	seen := map[string]bool{}
	for _, word := range words {
		label, value, paired := strings.Cut(word, "=")
		switch {
		case !paired || !queue.ValidID(label) || !queue.ValidID(value) || len(word) > queue.MaxKey:
			return fmt.Errorf("%q is not a valid LABEL=VALUE; use letters, digits and . _ @ / -, starting each part with a "+
				"letter or a digit, at most %d characters in all", word, queue.MaxKey)
		case seen[label]:
			return fmt.Errorf("label %q is listed twice; list it once", label)
		}
		seen[label] = true
	}
	return nil
}

// LabelsOfNode returns the labels in the setting node_labels.
func (s *Settings) LabelsOfNode() map[string]string {
	labels := map[string]string{}
	for word := range strings.FieldsSeq(s.NodeLabels) {
		label, value, _ := strings.Cut(word, "=")
		labels[label] = value
	}
	return labels
}

func setStore(s *Settings, text string) error {
	if text != StoreSQLite {
		if err := checkStore(text); err != nil {
			return err
		}
	}
	s.Store = text
	return nil
}

// checkStore returns an error if the text is not the URL of a PostgreSQL database. The text may
// contain a password, so errors do not contain it.
func checkStore(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" || len(text) > maxStore ||
		strings.ContainsAny(text, "\x00\n "):
		return errors.New("must be sqlite or a URL like postgres://USER@HOST/DATABASE")
	case strings.Contains(text, "#"):
		return errors.New("must not contain #; write it as %23")
	case strings.Trim(u.Path, "/") == "":
		return errors.New("must name a database; write it like postgres://USER@HOST/DATABASE")
	}
	return nil
}

// maxStore is the maximum length of a store URL, in bytes.
const maxStore = 4096

// StoreURL returns the URL of the database that stores the queue. It returns "" for the SQLite file in
// the state directory.
func (s *Settings) StoreURL() (string, error) {
	switch {
	case s.StoreFile == "" && s.Store == StoreSQLite:
		return "", nil
	case s.StoreFile == "":
		return s.Store, nil
	case s.Store != StoreSQLite:
		return "", queue.Invalid("store_file", `cannot be combined with the setting "store"; remove one of the two`)
	}
	path := s.StoreFile
	if name, handed := strings.CutPrefix(path, credential); handed {
		dir := os.Getenv("CREDENTIALS_DIRECTORY")
		if dir == "" {
			return "", queue.Invalid("store_file", "systemd passed no credentials to the service; add LoadCredential=%s:/PATH "+
				"to the service's unit", name)
		}
		path = filepath.Join(dir, name)
	}
	return ReadStore("store_file", path)
}

// ReadStore reads the URL of a database from a file. Its errors contain the name in the parameter
// field.
func ReadStore(field, path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", queue.Invalid(field, "the file with the database URL cannot be read: %v", err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxStore+1))
	if err != nil {
		return "", queue.Invalid(field, "the file with the database URL cannot be read: %v", err)
	}
	text := string(bytes.TrimSpace(raw))
	if err := checkStore(text); err != nil {
		return "", queue.Invalid(field, "the content of %s %v", path, err)
	}
	return text, nil
}

// These are the limits of the setting store_roles.
const (
	maxRoles = 256
	maxRole  = 63 // bytes; the limit of PostgreSQL for names
)

func checkRoles(text string) error {
	words := strings.Fields(text)
	if len(words) == 0 || len(words) > maxRoles {
		return fmt.Errorf("wrong number of roles (%d); use 1 to %d", len(words), maxRoles)
	}
	seen := map[string]bool{}
	for _, word := range words {
		role, user, paired := strings.Cut(word, "=")
		switch {
		case !paired || role == "" || user == "" || len(role) > maxRole || len(user) > maxName:
			return fmt.Errorf("%q is not a valid ROLE=USER; write it like app=alice", word)
		case seen[role]:
			return fmt.Errorf("role %q is listed twice; list it once", role)
		}
		seen[role] = true
	}
	return nil
}

// RoleUsers returns the users in the setting store_roles, by role.
func (s *Settings) RoleUsers() map[string]string {
	users := map[string]string{}
	for word := range strings.FieldsSeq(s.StoreRoles) {
		role, user, _ := strings.Cut(word, "=")
		users[role] = user
	}
	return users
}
