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

// StoreSQLite is the store that the state folder has.
const StoreSQLite = "sqlite"

// credential is how store_file names one that systemd hands to the service.
const credential = "credential:"

// placed are the settings that say where the queue is, or that belong to one machine. They cannot be stored in the
// queue, which several machines may share.
var placed = []string{"store", "store_file", "node", "node_labels", "node_lease", "job_tmpdir"}

// Placed reports whether the setting cannot be stored in the queue: see placed.
func (k *Key) Placed() bool { return slices.Contains(placed, k.Name) }

func storeKey() Key {
	return Key{"store", StoreSQLite, "where the queue is: sqlite is a file in the state folder, postgres://USER@HOST/DATABASE a database of a PostgreSQL server, 14 or later; in the file or the environment alone; holds from the next start", true, setStore, func(s *Settings) string { return s.Store }, nil}
}

func storeFileKey() Key {
	return textOrNone("store_file", "file that has the URL of store, which keeps a password out of sight: /PATH, or credential:NAME of systemd's; holds from the next start", func(s *Settings) *string { return &s.StoreFile }, func(text string) error {
		name, handed := strings.CutPrefix(text, credential)
		if handed && !queue.ValidID(name) || !handed && !filepath.IsAbs(text) {
			return fmt.Errorf("%q is no /PATH, nor credential:NAME", text)
		}
		return nil
	})
}

// nodeKeys are the settings of one of the machines that share a store.
func nodeKeys() []Key {
	return []Key{
		textOrNone("node", "name of this machine among those that share a store; none is its host name; in the file or the environment alone; holds from the next start", func(s *Settings) *string { return &s.Node }, func(text string) error {
			if !queue.ValidID(text) || strings.Contains(text, "=") {
				return fmt.Errorf("%q is no name: up to 128 letters, digits and . _ @ / -, beginning with a letter or a digit", text)
			}
			return nil
		}),
		textOrNone("node_labels", "what jobs may ask of this machine beside its name, with --on LABEL=VALUE: LABEL=VALUE LABEL=VALUE; in the file or the environment alone", func(s *Settings) *string { return &s.NodeLabels }, checkNodeLabels),
		duration("node_lease", "30s", "how long this machine may be silent before others take over what it runs, of a store that machines share, at least 2s; in the file or the environment alone; holds from the next start", 2*time.Second, func(s *Settings) *time.Duration { return &s.NodeLease }),
		choice("on_partition", "stop", "what becomes of what runs here when the store cannot be reached for so long: stop ends it before others begin it anew; continue lets it run, and it may run twice", func(s *Settings) *string { return &s.OnPartition }, "stop", "continue"),
	}
}

// Limits of node_labels.
const maxNodeLabels = 64

func checkNodeLabels(text string) error {
	words := strings.Fields(text)
	if len(words) == 0 || len(words) > maxNodeLabels {
		return fmt.Errorf("has %d labels; 1 to %d are taken", len(words), maxNodeLabels)
	}
	seen := map[string]bool{}
	for _, word := range words {
		label, value, paired := strings.Cut(word, "=")
		switch {
		case !paired || !queue.ValidID(label) || !queue.ValidID(value) || len(word) > queue.MaxKey:
			return fmt.Errorf("%q is no LABEL=VALUE: of each letters, digits and . _ @ / -, beginning with a letter or a digit, at most %d in all", word, queue.MaxKey)
		case seen[label]:
			return fmt.Errorf("names the label %q twice", label)
		}
		seen[label] = true
	}
	return nil
}

// LabelsOfNode are the labels of node_labels.
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

// checkStore refuses what is no URL of a PostgreSQL database. The text may have a password, so no error has it.
func checkStore(text string) error {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" || len(text) > maxStore || strings.ContainsAny(text, "\x00\n "):
		return errors.New("is neither sqlite nor a URL like postgres://USER@HOST/DATABASE")
	case strings.Contains(text, "#"):
		return errors.New("has a #, which stands for itself nowhere in a URL; write it %23")
	case strings.Trim(u.Path, "/") == "":
		return errors.New("names no database; a URL is like postgres://USER@HOST/DATABASE")
	}
	return nil
}

// maxStore is the longest URL of a store, in bytes.
const maxStore = 4096

// StoreURL is the URL of the database that has the queue, "" for the file in the state folder.
func (s *Settings) StoreURL() (string, error) {
	switch {
	case s.StoreFile == "" && s.Store == StoreSQLite:
		return "", nil
	case s.StoreFile == "":
		return s.Store, nil
	case s.Store != StoreSQLite:
		return "", queue.Invalid("store_file", "is set, and store too; leave one of them")
	}
	path := s.StoreFile
	if name, handed := strings.CutPrefix(path, credential); handed {
		folder := os.Getenv("CREDENTIALS_DIRECTORY")
		if folder == "" {
			return "", queue.Invalid("store_file", "names a credential, and systemd has handed none; the unit needs LoadCredential=%s:/PATH", name)
		}
		path = filepath.Join(folder, name)
	}
	return ReadStore("store_file", path)
}

// ReadStore reads the URL of a database from a file that a field names.
func ReadStore(field, path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", queue.Invalid(field, "cannot be read: %v", err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxStore+1))
	if err != nil {
		return "", queue.Invalid(field, "cannot be read: %v", err)
	}
	text := string(bytes.TrimSpace(raw))
	if err := checkStore(text); err != nil {
		return "", queue.Invalid(field, "%s: what stands there %v", path, err)
	}
	return text, nil
}

// Limits of store_roles.
const (
	maxRoles = 256
	maxRole  = 63 // bytes, as PostgreSQL has them
)

func checkRoles(text string) error {
	words := strings.Fields(text)
	if len(words) == 0 || len(words) > maxRoles {
		return fmt.Errorf("has %d roles; 1 to %d are taken", len(words), maxRoles)
	}
	seen := map[string]bool{}
	for _, word := range words {
		role, user, paired := strings.Cut(word, "=")
		switch {
		case !paired || role == "" || user == "" || len(role) > maxRole || len(user) > maxName:
			return fmt.Errorf("%q is no ROLE=USER", word)
		case seen[role]:
			return fmt.Errorf("names the role %q twice", role)
		}
		seen[role] = true
	}
	return nil
}

// RoleUsers are the users of store_roles, by the names of the roles.
func (s *Settings) RoleUsers() map[string]string {
	users := map[string]string{}
	for word := range strings.FieldsSeq(s.StoreRoles) {
		role, user, _ := strings.Cut(word, "=")
		users[role] = user
	}
	return users
}
