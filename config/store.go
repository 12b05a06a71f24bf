package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/queuectl/queuectl/queue"
)

// StoreSQLite is the default of the setting "store". The service then stores the queue in an SQLite file in the
// state directory.
const StoreSQLite = "sqlite"

// systemdCredentialPrefix begins a value of the setting store_file that is not a path but the name of a systemd
// credential.
const systemdCredentialPrefix = "credential:"

func checkStoreFileSetting(text string) error {
	name, handed := strings.CutPrefix(text, systemdCredentialPrefix)
	if handed && !queue.ValidID(name) || !handed && !filepath.IsAbs(text) {
		return fmt.Errorf("%q is neither an absolute path nor credential:NAME", text)
	}
	return nil
}

func checkNodeName(name string) error {
	if !queue.ValidID(name) || strings.Contains(name, "=") {
		return fmt.Errorf("%q is not a valid node name; use up to 128 letters, digits and . _ @ / -, starting with "+
			"a letter or a digit", name)
	}
	return nil
}

// maxNodeLabels is the maximum number of labels in node_labels.
const maxNodeLabels = 64

func checkNodeLabels(text string) error {
	return checkNameValuePairs("label", maxNodeLabels, text, func(word, label, value string) error {
		if queue.ValidID(label) && queue.ValidID(value) && len(word) <= queue.MaxKeyBytes {
			return nil
		}
		return fmt.Errorf("%q is not a valid LABEL=VALUE; use letters, digits and . _ @ / -, starting each part with a "+
			"letter or a digit, at most %d characters in all", word, queue.MaxKeyBytes)
	})
}

// checkNameValuePairs returns an error unless the text consists of 1 to maxPairs words of the form NAME=VALUE with
// different names. checkPair returns an error for an invalid word. pairNoun is the word for a pair in error messages.
func checkNameValuePairs(pairNoun string, maxPairs int, text string,
	checkPair func(word, name, value string) error) error {
	words := strings.Fields(text)
	if len(words) == 0 || len(words) > maxPairs {
		return fmt.Errorf("wrong number of %ss (%d); use 1 to %d", pairNoun, len(words), maxPairs)
	}
	seen := map[string]bool{}
	for _, word := range words {
		name, value, _ := strings.Cut(word, "=")
		if err := checkPair(word, name, value); err != nil {
			return err
		}
		if seen[name] {
			return fmt.Errorf("%s %q is listed twice; list it once", pairNoun, name)
		}
		seen[name] = true
	}
	return nil
}

// parseNameValuePairs returns words of the form NAME=VALUE as a map.
func parseNameValuePairs(text string) map[string]string {
	values := map[string]string{}
	for word := range strings.FieldsSeq(text) {
		name, value, _ := strings.Cut(word, "=")
		values[name] = value
	}
	return values
}

// NodeLabelsByName returns the setting node_labels, the labels of this node, as a map.
func (s *Settings) NodeLabelsByName() map[string]string { return parseNameValuePairs(s.NodeLabels) }

func parseStoreSetting(text string) (string, error) {
	if text == StoreSQLite {
		return text, nil
	}
	return text, checkStoreURL(text)
}

// checkStoreURL returns an error if storeURL is not the URL of a PostgreSQL database. The URL may contain a
// password, so errors do not contain it.
func checkStoreURL(storeURL string) error {
	u, err := url.Parse(storeURL)
	switch {
	case err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" || len(storeURL) > maxStoreURLBytes ||
		strings.ContainsAny(storeURL, "\x00\n "):
		return errors.New("must be sqlite or a URL like postgres://USER@HOST/DATABASE")
	case strings.Contains(storeURL, "#"):
		return errors.New("must not contain #; write it as %23")
	case strings.Trim(u.Path, "/") == "":
		return errors.New("must name a database; write it like postgres://USER@HOST/DATABASE")
	}
	return nil
}

const maxStoreURLBytes = 4096

// StoreURL returns the URL of the database that stores the queue. It returns "" for the SQLite file in
// the state directory.
func (s *Settings) StoreURL() (string, error) {
	switch {
	case s.StoreFile == "" && s.Store == StoreSQLite:
		return "", nil
	case s.StoreFile == "":
		return s.Store, nil
	case s.Store != StoreSQLite:
		return "", queue.InvalidFieldError("store_file", `cannot be combined with the setting "store"; remove one of the two`)
	}
	path := s.StoreFile
	if name, handed := strings.CutPrefix(path, systemdCredentialPrefix); handed {
		dir := os.Getenv("CREDENTIALS_DIRECTORY")
		if dir == "" {
			return "",
				queue.InvalidFieldError("store_file", "systemd passed no credentials to the service; add LoadCredential=%s:/PATH "+
					"to the service's unit", name)
		}
		path = filepath.Join(dir, name)
	}
	return ReadStoreURLFile("store_file", path)
}

// ReadStoreURLFile reads the URL of a database from the file at path. settingOrFlagName is the setting or flag that
// contains the path; errors contain this name.
func ReadStoreURLFile(settingOrFlagName, path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", queue.InvalidFieldError(settingOrFlagName, "the file with the database URL cannot be read: %v", err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxStoreURLBytes+1))
	if err != nil {
		return "", queue.InvalidFieldError(settingOrFlagName, "the file with the database URL cannot be read: %v", err)
	}
	text := string(bytes.TrimSpace(raw))
	if err := checkStoreURL(text); err != nil {
		return "", queue.InvalidFieldError(settingOrFlagName, "the content of %s %v", path, err)
	}
	return text, nil
}

// These are the limits of the setting store_roles.
const (
	maxStoreRoles     = 256
	maxStoreRoleBytes = 63 // the limit of PostgreSQL for a name
)

func checkStoreRoles(text string) error {
	return checkNameValuePairs("role", maxStoreRoles, text, func(word, role, user string) error {
		if role == "" || user == "" || len(role) > maxStoreRoleBytes || len(user) > maxAccountNameBytes {
			return fmt.Errorf("%q is not a valid ROLE=USER; write it like app=alice", word)
		}
		return nil
	})
}

// UsersByStoreRole maps each database role in the setting store_roles to its user.
func (s *Settings) UsersByStoreRole() map[string]string { return parseNameValuePairs(s.StoreRoleUsers) }
