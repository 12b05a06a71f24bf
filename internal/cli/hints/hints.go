// Package hints suggests the command, flag or argument that the user probably meant.
//
// Start with FirstHintForWord, for the words of other programs, and SimilarWordHint, for typing errors.
package hints

import (
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/queue"
)

// The tables in the text files give hints for words of pueue, task-spooler, at, GNU parallel, systemd and
// Slurm. Each line contains the words, then ": ", then the hint.

// hintsForWord returns the hints of all lines of hintTable that contain a word.
func hintsForWord(word, hintTable string) (texts []string) {
	for line := range strings.Lines(hintTable) {
		words, text, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		if slices.Contains(strings.Fields(words), word) {
			texts = append(texts, text)
		}
	}
	return texts
}

// FirstHintForWord returns the first hint about a word in hintTable, or "" if hintTable does not contain the word.
func FirstHintForWord(word, hintTable string) string {
	for _, hint := range hintsForWord(word, hintTable) {
		return "; " + hint
	}
	return ""
}

// OtherProgramCommandHints is the table of hints about commands of other programs.
//
//go:embed commands.txt
var OtherProgramCommandHints string

// otherProgramSubcommandHints maps subcommands of other programs, like delete in `queue delete`, to subcommands of
// queuectl. If several lines contain a word, the hint names the first of their subcommands that the command group has.
//
//go:embed group_verbs.txt
var otherProgramSubcommandHints string

// SubcommandHint returns a hint about a subcommand of another program. The hint names the subcommand with the same
// meaning in queuectl's command group. SubcommandHint returns "" if the group has no such subcommand.
func SubcommandHint(commandGroup, word string, subcommands []*cobra.Command) string {
	for _, inGroup := range hintsForWord(word, otherProgramSubcommandHints) {
		for _, v := range subcommands {
			if v.Name() == inGroup {
				usage, _, _ := strings.Cut(v.Use, " [")
				usage, _, _ = strings.Cut(usage, " |")
				return "; use queuectl " + commandGroup + " " + usage
			}
		}
	}
	return ""
}

// UnexpectedArgumentsHint returns a hint about arguments that the command verb does not accept. It returns "" if it is
// unclear what the user meant.
func UnexpectedArgumentsHint(verb string, args []string) string {
	word, known := args[0], ""
	_, notNumber := strconv.ParseUint(word, 10, 64)
	switch state := queue.StateNameForWord(word); verb {
	case "list", "ps", "status":
		switch {
		case word == "all" && verb == "status":
			known = "list"
		case word == "all":
			return `; leave out "all", because list selects all jobs`
		case state != "" && verb == "status":
			known = "list --state " + state
		case state != "":
			known = verb + " --state " + state
		default:
			known = "show " + queue.QuoteShellWord(queue.ClipForMessage(word))
		}
	case "worker":
		if notNumber == nil {
			known = "worker scale " + word
		}
	case "gate":
		return FirstHintForWord(word,
			"rm delete del remove unset: remove a limit with: queuectl gate set @KEY --unset lock (or "+
				"rate); list the keys with: queuectl gate list")
	case "config":
		key, value, given := strings.Cut(word, "=")
		if len(args) > 1 {
			value, given = args[1], true
		}
		switch {
		case !strings.ContainsAny(key, "_.") && !slices.Contains(strings.Fields(SingleWordSettingNames), key):
			return ""
		case given:
			known = "config set " + queue.QuoteShellWord(queue.ClipForMessage(key)) + " " +
				queue.QuoteShellWord(queue.ClipForMessage(value))
		default:
			known = "config get " + queue.QuoteShellWord(queue.ClipForMessage(key))
		}
	}
	if known == "" {
		return ""
	}
	return "; use queuectl " + known
}

// SingleWordSettingNames lists the settings whose names contain neither _ nor a dot. queuectl recognizes the names of
// all other settings by these characters, so it does not need the table of all settings, which is large.
const SingleWordSettingNames = "workers timeout jitter priority shell scheduling aging resources webhooks store node"

// flagHintTables contains the tables of hints about flags. A line with "== " and command names begins the
// table for these commands; "== any" begins a table for all commands.
//
//go:embed flags.txt
var flagHintTables string

// FlagHintTable returns a table for FirstHintForWord, with hints about flags of other programs. verb is the command
// that the user gave the flag to. hasYesFlag says whether this command has the flag --yes. Only "queuectl kill" has
// hints for flags like -9 and -HUP.
func FlagHintTable(verb string, hasYesFlag bool) (hintTable string) {
	for _, table := range strings.Split(flagHintTables, "== ") {
		verbs, lines, _ := strings.Cut(table, "\n")
		if verbs == "any" || slices.Contains(strings.Fields(verbs), verb) {
			hintTable += lines
		}
	}
	if hasYesFlag {
		return hintTable + "--force --assume-yes -y: use --yes\n"
	}
	return hintTable + "--force --assume-yes -y: leave this flag out, because the command asks no questions\n"
}

// SimilarWordHint returns a hint that names the known word that the user probably meant, or fallback. A known word can
// be meant if word consists of four or more of its first letters, or differs from it by at most two typing errors. The
// first letter must be right, because words with another first letter usually mean something else.
func SimilarWordHint(word string, knownWords []string, fallback string) string {
	// minPrefixLetters is the minimum number of letters of an abbreviation.
	const minPrefixLetters, maxMistakes = 4, 2
	typed := strings.TrimLeft(word, "-")
	// The variable candidates lists the known words that have the right first letter. prefixMatches lists the candidates
	// that begin with the typed word. Both contain the words without their leading dashes. All known words have the same
	// number of dashes.
	var candidates, prefixMatches []string
	dashes := ""
	for _, k := range knownWords {
		if meant := strings.TrimLeft(k, "-"); typed != "" && meant != "" && meant[0] == typed[0] {
			candidates, dashes = append(candidates, meant), strings.TrimSuffix(k, meant)
			if len(typed) >= minPrefixLetters && strings.HasPrefix(meant, typed) {
				prefixMatches = append(prefixMatches, meant)
			}
		}
	}
	best := queue.NearestWordWithin(typed, candidates, maxMistakes)
	if len(prefixMatches) == 1 {
		best = prefixMatches[0]
	}
	if best == "" {
		return "; " + fallback
	}
	return fmt.Sprintf("; did you mean %q?", dashes+best)
}
