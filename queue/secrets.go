package queue

import (
	"slices"
	"strings"
)

// credentialPrefix is the prefix of a reference to a systemd credential of the runner. The name of the credential
// follows the prefix.
const credentialPrefix = "credential:"

// CredentialName returns the name of the systemd credential in a reference. ok is false if the reference is the
// path of a file.
func CredentialName(reference string) (name string, ok bool) {
	return strings.CutPrefix(reference, credentialPrefix)
}

// resolveSecrets returns the spec's references to secrets, each as NAME=reference. It does not read the
// secrets. Only the runner may do that.
func resolveSecrets(check fieldChecker, s *Spec) []string {
	var references []string
	for name, reference := range s.EnvSecret {
		_, duplicate := s.Env[name]
		check(!duplicate, "env_secret", `variable %s is also set in field "env"; set it in only one of them`, name)
		references = append(references, name+"="+reference)
	}
	slices.Sort(references)
	return references
}

// validSecretReference reports whether a text is a valid reference to a secret: the path of a file, or a systemd
// credential of the runner.
func validSecretReference(text string) bool {
	if name, ok := CredentialName(text); ok {
		return validCredentialName(name)
	}
	return isAbsolutePath(text) && hasNoNUL(text)
}

// validCredentialName reports whether name is a valid name of a credential by the rules of systemd. Such a name cannot
// contain a slash, so it cannot lead to a file in another directory.
func validCredentialName(name string) bool {
	for i := range len(name) {
		c := name[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '.' &&
			i > 0) {
			return false
		}
	}
	return len(name) > 0 && len(name) <= 255
}
