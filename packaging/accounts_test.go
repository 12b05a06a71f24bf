package packaging

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The accounts that systemd makes, those that the packages make without it, those of the
// images and those that the page tells an administrator to make are the same.
func TestAccountsAgree(t *testing.T) {
	sysusers, err := Files.ReadFile("queuectl.sysusers")
	if err != nil {
		t.Fatal(err)
	}
	var groups []string
	var home, shell string
	for line := range strings.Lines(string(sysusers)) {
		switch word := strings.Fields(line); word[0] {
		case "g":
			groups = append(groups, word[1])
		case "u":
			home, shell = word[len(word)-2], word[len(word)-1]
		}
	}
	groupadd := regexp.MustCompile(`groupadd --system (?:--gid \d+ )?(\S+)`)
	loop := regexp.MustCompile(`for group in (.*); do`)
	options := []string{"--system", "--no-create-home", "--home-dir " + home, "--shell " + shell}
	for name, gid := range map[string]string{"postinst": "queuectl", "Containerfile": "900", "../docs/install.md": "queuectl"} {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.NewReplacer("\\\n", "", "\t", " ").Replace(string(raw))
		text = regexp.MustCompile(` +`).ReplaceAllString(text, " ")
		var got []string
		if found := loop.FindStringSubmatch(text); found != nil {
			got = strings.Fields(found[1])
		} else {
			for _, found := range groupadd.FindAllStringSubmatch(text, -1) {
				got = append(got, strings.TrimSuffix(found[1], ";"))
			}
		}
		if !slices.Equal(got, groups) {
			t.Errorf("%s: got groups %q, want %q", name, got, groups)
		}
		_, user, _ := strings.Cut(text, "useradd ")
		user, _, _ = strings.Cut(user, "\n")
		for _, option := range append(options, "--gid "+gid) {
			if !strings.Contains(user, option) {
				t.Errorf("%s: useradd has no %s: %s", name, option, user)
			}
		}
		if !strings.HasSuffix(strings.TrimSpace(user), " queuectl") {
			t.Errorf("%s: useradd makes another account: %s", name, user)
		}
	}
}
