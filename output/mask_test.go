package output_test

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/queuectl/queuectl/output"
)

// maskedContent returns the content of a log that masks texts, after the given pieces of one stream were appended.
func maskedContent(secrets [][]byte, pieces ...string) string {
	l := output.NewLog(1<<20, nil)
	l.SetSecretsToMask(secrets)
	for _, p := range pieces {
		l.Append(output.Stdout, 1, []byte(p))
	}
	l.Close()
	return contentOf(l)
}

// contentOf returns the first MiB of the bytes of a log.
func contentOf(l *output.Log) string {
	var b strings.Builder
	chunks, _, _, _ := l.Read(output.StreamCursor{}, 1<<20)
	for _, c := range chunks {
		b.Write(c.Data)
	}
	return b.String()
}

// Every secret is masked, even if it arrives in several pieces, or if it touches or overlaps another secret.
func TestEverySecretIsMasked(t *testing.T) {
	for _, c := range []struct{ texts, printed, want string }{
		{"secret", "a secret b", "a *** b"}, {"secret", "secretsecret", "******"}, {"secret", "sesecret", "se***"},
		{"secret", "secre", "secre"},
		{"secret", "", ""}, {"abcd abcdef", "xabcdefx abcdx", "x***x ***x"}, {"bcde abcdefg", "abcdefg", "***"},
		{"abcd cdef", "abcdef", "***"},
		{"aaaa", "aaaaaaa", "***"}, {"aaaa", "aaab", "aaab"}, {"aabaa", "aabaabaab", "***b"},
		{"ab\ncd", "ab\ncd\nab", "***\nab"},
	} {
		var texts [][]byte
		for word := range strings.SplitSeq(c.texts, " ") {
			texts = append(texts, []byte(word))
		}
		for cut := range len(c.printed) + 1 {
			if got := maskedContent(texts, c.printed[:cut], c.printed[cut:]); got != c.want {
				t.Errorf("output %q, cut after byte %d, masked texts %q: the log keeps %q, want %q", c.printed, cut, c.texts, got,
					c.want)
			}
		}
		if got := maskedContent(texts, strings.Split(c.printed, "")...); got != c.want {
			t.Errorf("output %q, byte by byte, masked texts %q: the log keeps %q, want %q", c.printed, c.texts, got, c.want)
		}
	}
}

// maskNaively masks a complete text in the simplest way, to check Log. Overlapping secrets are replaced by one
// ***.
func maskNaively(secrets [][]byte, printedText []byte) string {
	inside, joined := make([]bool, len(printedText)), make([]bool, len(printedText)+1)
	for _, text := range secrets {
		for at := range printedText {
			if len(text) > 0 && bytes.HasPrefix(printedText[at:], text) {
				for i := range text {
					inside[at+i] = true
					joined[at+i] = joined[at+i] || i > 0
				}
			}
		}
	}
	var b strings.Builder
	for i, c := range printedText {
		switch {
		case !inside[i]:
			b.WriteByte(c)
		case !joined[i]:
			b.WriteString("***")
		}
	}
	return b.String()
}

// Masking a stream in pieces of any sizes gives the same result as maskNaively gives for the complete text.
func TestMaskMatchesNaiveReplacement(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		letters := rapid.StringMatching(`[ab]{1,6}`)
		var texts [][]byte
		for _, text := range rapid.SliceOfN(letters, 1, 4).Draw(t, "texts") {
			texts = append(texts, []byte(text))
		}
		pieces := rapid.SliceOfN(rapid.StringMatching(`[abc]{0,9}`), 0, 8).Draw(t, "pieces")
		printed := strings.Join(pieces, "")
		if got, want := maskedContent(texts, pieces...), maskNaively(texts, []byte(printed)); got != want {
			t.Fatalf("output %q, masked texts %q: the log keeps %q, want %q", printed, texts, got, want)
		}
	})
}

// Searching for a secret of the maximum length is as fast as for a short one, even if the output almost matches
// the secret at every byte.
func TestLongSecretIsMaskedQuickly(t *testing.T) {
	text := append(bytes.Repeat([]byte("a"), 64<<10-1), 'b')
	l := output.NewLog(2<<20, func() (*os.File, error) { return os.CreateTemp(t.TempDir(), "") })
	defer l.Discard()
	l.SetSecretsToMask([][]byte{text})
	for range 16 {
		l.Append(output.Stderr, 1, bytes.Repeat([]byte("a"), 64<<10))
	}
	l.Append(output.Stderr, 1, []byte("b."))
	l.Close()
	if got := contentOf(l); len(got) != 15<<16+1+len("***.") || !strings.HasSuffix(got, "a***.") {
		t.Errorf("the log keeps %d bytes, which end with %q", len(got), got[len(got)-6:])
	}
}
