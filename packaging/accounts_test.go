package packaging

import (
	"cmp"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The accounts are created in four ways: by systemd, by the packages on systems without systemd, in the container
// images, and with the commands in the installation guide. All four ways must create the same accounts.
func TestAllInstallationsCreateSameAccounts(t *testing.T) {
	sysusers, err := InstalledFiles.ReadFile("queuectl.sysusers")
	if err != nil {
		t.Fatal(err)
	}
	var groups []string
	homes, shells := map[string]string{}, map[string]string{} // home directories and shells, by user
	for line := range strings.Lines(string(sysusers)) {
		switch word := strings.Fields(line); word[0] {
		case "g":
			groups = append(groups, word[1])
		case "u":
			homes[word[1]], shells[word[1]] = word[len(word)-2], word[len(word)-1]
		}
	}
	groupadd := regexp.MustCompile(`groupadd --system (?:--gid \d+ )?(\S+)`)
	loop := regexp.MustCompile(`for group in (.*); do`)
	for name, gids := range map[string]map[string]string{"postinst": {},
		"Containerfile": {"queuectl": "900", "queuectl-hook": "903"}, "../docs/install.md": {}} {
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
		userOptions := map[string]string{} // options of useradd, by user
		for _, found := range regexp.MustCompile(
			`useradd (.*?) (\S+)(?: &&.*)?\n`).FindAllStringSubmatch(strings.ReplaceAll(text, " && useradd", "\nuseradd"), -1) {
			userOptions[found[2]] = found[1]
		}
		for user, home := range homes {
			for _, option := range []string{"--system", "--no-create-home", "--home-dir " + home + " ",
				"--shell " + shells[user], "--gid " + cmp.Or(gids[user], user) + " "} {
				if !strings.Contains(userOptions[user]+" ", option) {
					t.Errorf("%s: useradd of %s has no %s: %s", name, user, option, userOptions[user])
				}
			}
		}
		if len(userOptions) != len(homes) {
			t.Errorf("%s: useradd creates the accounts %v, want those of sysusers", name, userOptions)
		}
	}
}
