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

// resolveSecrets checks what refers to secrets. What these are is known to the runner alone.
func resolveSecrets(check checker, s *Spec) []string {
	const field = "env_secret"
	check(!or(s.MaskSecrets, false) || len(s.EnvSecret) > 0, "mask_secrets", "works only with env_secret; give both, or leave it out")
	var list []string
	for name, reference := range s.EnvSecret {
		check(name != "" && !strings.ContainsAny(name, "=\x00"), field, "%q is not a name of a variable", Clip(name))
		check(len(name) <= MaxLabel, field, "the name %q is longer than %d bytes", Clip(name), MaxLabel)
		check(!slices.Contains(ownVariables, name), field, "%s is set by queuectl itself", name)
		_, twice := s.Env[name]
		check(!twice, field, "%s is given in env too; give one of them", name)
		if credential, ok := CredentialName(reference); ok {
			check(validCredential(credential), field, "%q names no credential: 1 to 255 of A-Z a-z 0-9 . _ -, not beginning with a dot", Clip(reference))
		} else {
			check(absolute(reference), field, "%s is neither an absolute path nor credential:NAME; the secret itself does not belong in a job", Clip(name)) // and is not repeated
		}
		list = append(list, name+"="+reference)
	}
	slices.Sort(list)
	return list
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
