package input

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"unicode"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/queue"
)

// This file reads the jobs of a file one by one, so its memory use does not depend on the length of the file. Package
// enqueue sends the jobs in requests of bounded size.

// eachJSONJob reads a JSON array or JSON lines. It calls handleJob(raw, lineNumber) for every job, where lineNumber is
// the number of the job's first line. Its memory use depends only on the longest job.
func eachJSONJob(r io.Reader, handleJob func(raw []byte, lineNumber int) error) error {
	in, err := skipByteOrderMark(r)
	if err != nil {
		return err
	}
	lineNumber := 1
	for {
		c, _, err := in.ReadRune()
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case c == '\n':
			lineNumber++
		case unicode.IsSpace(c):
		case c == '[':
			return eachArrayElement(in, lineNumber, handleJob)
		default:
			in.UnreadRune()
			return eachLineFrom(in, lineNumber, '\n', func(raw []byte, lineNumber int) error {
				return handleJob(bytes.TrimSpace(raw), lineNumber)
			})
		}
	}
}

// eachNonEmptyLine calls handleLine(raw, lineNumber) for every line that is not empty, where lineNumber is the number
// of the line. delimiter is the byte that ends a line.
func eachNonEmptyLine(r io.Reader, delimiter byte, handleLine func(raw []byte, lineNumber int) error) error {
	in, err := skipByteOrderMark(r)
	if err != nil {
		return err
	}
	return eachLineFrom(in, 1, delimiter, handleLine)
}

// skipByteOrderMark returns a reader of the text without the UTF-8 byte-order mark at its beginning. It rejects
// UTF-16.
func skipByteOrderMark(r io.Reader) (*bufio.Reader, error) {
	in := bufio.NewReaderSize(r, 64<<10)
	begin, _ := in.Peek(3) // ignore an error, because the next read returns the same error
	switch {
	case bytes.HasPrefix(begin, []byte("\xef\xbb\xbf")):
		in.Discard(3) // cannot fail, because the bytes are in the buffer
	case bytes.HasPrefix(begin, []byte("\xff\xfe")), bytes.HasPrefix(begin, []byte("\xfe\xff")):
		return nil, queue.Errorf(queue.CodeInvalid, "the input is UTF-16; save it as UTF-8")
	}
	return in, nil
}

// eachLineFrom calls handleLine for every line that is not empty, with the line and its number. The first line
// has the number firstLineNumber. delimiter is the byte that ends a line.
func eachLineFrom(in *bufio.Reader, firstLineNumber int, delimiter byte, handleLine func([]byte, int) error) error {
	for ; ; firstLineNumber++ {
		var raw []byte
		err := bufio.ErrBufferFull
		for err == bufio.ErrBufferFull {
			var part []byte
			part, err = in.ReadSlice(delimiter)
			if raw = append(raw, part...); len(raw) > control.MaxLineBytes {
				return fault.WithLineNumber(queue.Errorf(queue.CodeTooLarge,
					"longer than %d bytes; put large input in a file that the job reads", control.MaxLineBytes), firstLineNumber)
			}
		}
		if err != nil && err != io.EOF {
			return err
		}
		raw = bytes.TrimSuffix(raw, []byte{delimiter})
		text := raw
		if delimiter == '\n' { // drop the \r of \r\n; a line of only white space counts as empty
			raw = bytes.TrimSuffix(raw, []byte("\r"))
			text = bytes.TrimSpace(raw)
		}
		if len(text) > 0 {
			if failed := handleLine(raw, firstLineNumber); failed != nil {
				return failed
			}
		}
		if err == io.EOF {
			return nil
		}
	}
}

// eachArrayElement calls handleElement for every element of a JSON array, with the element and the number of its
// line. The caller has already read the [ that begins the array, in the line with the number firstLineNumber.
func eachArrayElement(in io.Reader, firstLineNumber int, handleElement func([]byte, int) error) error {
	lines := &lineCounter{r: in, lineStartOffsets: []int64{0}, firstLineNumber: firstLineNumber}
	d := json.NewDecoder(io.MultiReader(bytes.NewReader([]byte{'['}), lines))
	if _, err := d.Token(); err != nil {
		return err
	}
	wrong := func(err error) error {
		var syntaxErr *json.SyntaxError
		if errors.As(err, &syntaxErr) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			err = queue.Errorf(queue.CodeParse, "invalid JSON: %v", err)
			return fault.WithLineNumber(err, lines.lineNumberAt(d.InputOffset()-1))
		}
		return err
	}
	for d.More() {
		var v json.RawMessage
		if err := d.Decode(&v); err != nil {
			return wrong(err)
		}
		line := lines.lineNumberAt(d.InputOffset() - 1 - int64(len(v)))
		if len(v) > control.MaxLineBytes {
			return fault.WithLineNumber(queue.Errorf(queue.CodeTooLarge,
				"the definition of this job is larger than %d bytes; put large input in a file that the job reads",
				control.MaxLineBytes), line)
		}
		if err := handleElement(v, line); err != nil {
			return err
		}
	}
	if _, err := d.Token(); err != nil {
		return wrong(err)
	}
	if _, err := d.Token(); err != io.EOF {
		return fault.Usagef("line %d: unexpected text after the end of the JSON array; remove it",
			lines.lineNumberAt(d.InputOffset()-1))
	}
	return nil
}

// lineCounter is a reader that records at which offsets lines begin, so that an error can name the line of a byte
// offset.
type lineCounter struct {
	r                io.Reader
	bytesRead        int64
	lineStartOffsets []int64 // offsets at which lines begin; offsets that are no longer needed are dropped
	firstLineNumber  int     // number of the line at lineStartOffsets[0]
}

// Read implements io.Reader.
func (l *lineCounter) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	for i, c := range p[:n] {
		if c == '\n' {
			l.lineStartOffsets = append(l.lineStartOffsets, l.bytesRead+int64(i)+1)
		}
	}
	l.bytesRead += int64(n)
	return n, err
}

// lineNumberAt returns the number of the line that contains the byte at offset. Offsets must not decrease from one
// call to the next.
func (l *lineCounter) lineNumberAt(offset int64) int {
	for len(l.lineStartOffsets) > 1 && l.lineStartOffsets[1] <= offset {
		l.lineStartOffsets, l.firstLineNumber = l.lineStartOffsets[1:], l.firstLineNumber+1
	}
	return l.firstLineNumber
}
