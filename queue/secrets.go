package queue

import (
	"slices"
	"strings"
)

// credentialWord begins a reference to a credential of the runner's; the name follows.
const credentialWord = "credential:"

// CredentialName is the name of the credential that a reference is to; ok is false if it is
// to a file.
func CredentialName(reference string) (name string, ok bool) {
	return strings.CutPrefix(reference, credentialWord)
}

// resolveSecrets returns the references to secrets, in the form NAME=reference. Only the runner can read the secrets
// themselves.
func resolveSecrets(check checker, s *Spec) []string {
	var list []string
	for name, reference := range s.EnvSecret {
		_, twice := s.Env[name]
		check(!twice, "env_secret", `variable %s is also set in field "env"; set it in only one of them`, name)
		list = append(list, name+"="+reference)
	}
	slices.Sort(list)
	return list
}

// validReference reports whether a text refers to a secret: to a file, or to a credential of the runner.
func validReference(text string) bool {
	if name, ok := CredentialName(text); ok {
		return validCredential(name)
	}
	return absolute(text) && withoutNUL(text)
}

// validCredential reports whether a credential may have this name, as systemd has it, so that
// it names no other file.
func validCredential(name string) bool {
	for i := range len(name) {
		c := name[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '.' && i > 0) {
			return false
		}
	}
	return len(name) > 0 && len(name) <= 255
}
