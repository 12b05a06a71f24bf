package output_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/queuectl/queuectl/output"
)

// The bytes of a character may arrive in two parts. The log then stores the complete character in one piece: while the
// attempt runs, in a database row, and in a file.
func TestLogPiecesEndBetweenCharacters(t *testing.T) {
	const text = "aé€𝄞z"
	for cut := range len(text) + 1 {
		l := output.NewLog(1<<20, fileCreatorIn(t.TempDir()))
		l.Append(output.Stdout, 1, []byte(text[:cut]))
		var c output.StreamCursor
		chunks := readRemainingChunks(t, l, &c, 1<<20)
		l.Append(output.Stdout, 1000, []byte(text[cut:]))
		chunks = append(chunks, readRemainingChunks(t, l, &c, 4)...)
		l.Close()
		chunks = append(chunks, readRemainingChunks(t, l, &c, 4)...)
		inline, err := l.Encode()
		if err != nil {
			t.Fatal(err)
		}
		for name, raw := range map[string][]byte{"inline": inline, "file": encodeLog(t, l)} {
			got, err := decodeChunks(raw)
			if name == "inline" {
				got, err = decodeEncodedLog(raw)
			}
			if err != nil || streamTexts(got)[0] != text {
				t.Errorf("%s, cut at %d: got %q, %v", name, cut, streamTexts(got)[0], err)
			}
			chunks = append(chunks, got...)
		}
		for _, chunk := range chunks {
			if !utf8.Valid(chunk.Data) {
				t.Errorf("cut at %d: the piece %q is not UTF-8", cut, chunk.Data)
			}
		}
	}
}

// decodeEncodedLog decodes a log in the form that is stored in a database row.
func decodeEncodedLog(raw []byte) (chunks []output.Chunk, err error) {
	err = output.Decode(bytes.NewReader(raw), func(c output.Chunk) error { chunks = append(chunks, c); return nil })
	return chunks, err
}

// If a UTF-8 text exceeds the limit of the log, the kept parts end and begin between two characters, and the
// gap between them has the exact size. A text within the limit is kept completely.
func TestLogLimitCutsBetweenCharacters(t *testing.T) {
	for _, c := range []struct {
		limit    int64
		in, want string
	}{
		{10, "éééééééé", "éé[6]ééé"},
		{16, "éééééééé", "éééééééé"},
		{9, "aaaaé€z", "aaaa[2]€z"},
		{10, "aaaaaaa€", "aaaaaaa€"},
		{9, "aaaa€bbb", "aaaa[3]bbb"},
		{4, "𝄞𝄞𝄞", "[8]𝄞"},
		{2, "𝄞𝄞", "[8]"},
		{1, "é", "[2]"},
		{8, "\x80\x80\x80\x80\x80\x80\x80\x80\x80", "\x80\x80\x80\x80[1]\x80\x80\x80\x80"}, // not UTF-8
		{6, "ab\xc3", "ab\xc3"},
	} {
		for _, step := range []int{1, 2, 3, len(c.in)} {
			l := output.NewLog(c.limit, fileCreatorIn(t.TempDir()))
			for at := 0; at < len(c.in); at += step {
				l.Append(output.Stdout, int64(at), []byte(c.in[at:min(at+step, len(c.in))]))
			}
			l.Close()
			var cursor output.StreamCursor
			if got := streamTexts(readRemainingChunks(t, l, &cursor, 1<<20))[0]; got != c.want {
				t.Errorf("limit %d, %q by %d: got %q, want %q", c.limit, c.in, step, got, c.want)
			}
			if l.KeptBytes()+l.DroppedBytes() != int64(len(c.in)) || l.KeptBytes() > c.limit {
				t.Errorf("limit %d, %q by %d: %d kept, %d dropped", c.limit, c.in, step, l.KeptBytes(), l.DroppedBytes())
			}
		}
	}
}

// If the output is UTF-8, each piece of the log is UTF-8, and every byte is either kept or counted as dropped.
// This holds for any sizes of writes and reads and for any limit of the log.
func TestUTF8OutputStaysUTF8(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Repeat(rapid.StringN(1, 40, -1).Draw(t, "text"),
			rapid.SampledFrom([]int{1, 1, 1, 3000}).Draw(t, "times"))
		l := output.NewLog(rapid.SampledFrom([]int64{0, 1, 5, 50, 1 << 20}).Draw(t, "limit"), fileCreatorIn(dir))
		defer l.Discard()
		var c output.StreamCursor
		var chunks []output.Chunk
		for rest := []byte(text); len(rest) > 0; {
			n := min(len(rest), rapid.SampledFrom([]int{1, 2, 3, 7, 20_000}).Draw(t, "bytes"))
			l.Append(output.Stdout, int64(len(rest)), rest[:n])
			rest = rest[n:]
			if rapid.Bool().Draw(t, "read") {
				chunks = append(chunks, readRemainingChunks(t, l, &c, rapid.SampledFrom([]int{4, 5, 1000}).Draw(t, "most"))...)
			}
		}
		l.Close()
		chunks = append(chunks, readRemainingChunks(t, l, &c, 1000)...)
		total := 0
		for _, chunk := range chunks {
			total += len(chunk.Data) + int(chunk.DroppedBytes)
		}
		if total != len(text) {
			t.Fatalf("%d bytes were read or dropped, want %d", total, len(text))
		}
		end := output.StreamCursor{-int64(rapid.IntRange(1, 100).Draw(t, "end")), -1}
		chunks = append(chunks, readRemainingChunks(t, l, &end, 1000)...)
		stored, err := decodeChunks(encodeLog(t, l))
		if err != nil {
			t.Fatal(err)
		}
		last, err := decodeTail(encodeLog(t, l), rapid.IntRange(1, 100).Draw(t, "tail"))
		if err != nil {
			t.Fatal(err)
		}
		for _, chunk := range append(append(chunks, stored...), last...) {
			if !utf8.Valid(chunk.Data) {
				t.Fatalf("the piece %q is not UTF-8", chunk.Data)
			}
		}
	})
}

// TrailingPartialCharacterBytes and LeadingPartialCharacterBytes count the bytes of a cut character at the end and at
// the beginning of a text. They return 0 for a text that is not UTF-8.
func TestPartialCharacterBytesAreCounted(t *testing.T) {
	for text, want := range map[string][2]int{
		"": {0, 0}, "a": {0, 0}, "é": {0, 0}, "\xc3": {1, 0}, "\xe2\x82": {2, 0}, "\xf0\x9d\x84": {3, 0}, "a\xe2": {1, 0},
		"\xa9": {0, 1}, "\x82\xacz": {0, 2}, "\x9d\x84\x9e": {0, 3}, "\x80\x80\x80\x80": {0, 0}, "\xff": {0, 0},
		"\xc3a": {0, 0},
	} {
		if got := [2]int{output.TrailingPartialCharacterBytes([]byte(text)),
			output.LeadingPartialCharacterBytes([]byte(text))}; got != want {
			t.Errorf("%q: got %v, want %v", text, got, want)
		}
	}
}

// The result of TextTail begins with a complete character.
func TestTextTailBeginsWithCompleteCharacter(t *testing.T) {
	for most, want := range []string{"", "z", "z", "éz", "éz", "éz", "€éz", "€éz"} {
		if got := output.TextTail([]byte("€éz"), most); string(got) != want {
			t.Errorf("the last %d bytes: got %q, want %q", most, got, want)
		}
	}
}

// Masking a secret does not split the characters around it, even if the text arrives byte by byte.
func TestMaskingKeepsUTF8Characters(t *testing.T) {
	l := output.NewLog(1<<20, fileCreatorIn(t.TempDir()))
	l.SetSecretsToMask([][]byte{[]byte("gehëim")})
	for _, b := range []byte("ünd gehëim ënde") {
		l.Append(output.Stdout, 1, []byte{b})
	}
	l.Close()
	var c output.StreamCursor
	chunks := readRemainingChunks(t, l, &c, 1000)
	if got := streamTexts(chunks)[0]; got != "ünd *** ënde" {
		t.Error(got)
	}
	if i := bytes.IndexFunc(chunks[0].Data, func(r rune) bool { return r == utf8.RuneError }); i >= 0 {
		t.Error(fmt.Sprint(chunks))
	}
}
