package wire

import (
	"encoding/binary"
	"reflect"
)

// A frame is encoded field by field, in the order of its struct: a number as a varint, a flag as one byte, a
// text as its length and its bytes, a list as the number of its entries and the entries. The fields of a
// nested struct are encoded one after another.

// appendValue appends the encoding of v to b.
func appendValue(b []byte, v reflect.Value) []byte {
	switch v.Kind() {
	case reflect.Int64:
		return binary.AppendVarint(b, v.Int())
	case reflect.Bool:
		if v.Bool() {
			return append(b, 1)
		}
		return append(b, 0)
	case reflect.String:
		return append(binary.AppendUvarint(b, uint64(v.Len())), v.String()...)
	case reflect.Struct:
		for i := range v.NumField() {
			b = appendValue(b, v.Field(i))
		}
		return b
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return append(binary.AppendUvarint(b, uint64(v.Len())), v.Bytes()...)
		}
		b = binary.AppendVarint(b, int64(v.Len()))
	}
	for i := range v.Len() { // a list, whose length is encoded above, or an array, which has a fixed length
		b = appendValue(b, v.Index(i))
	}
	return b
}

// decoder decodes values from its input. If the input is damaged, the decoder sets isDamaged, and returns zero for all
// further values.
type decoder struct {
	remainingInput []byte
	remainingText  string // same bytes as remainingInput; decoded texts are substrings of this string
	isDamaged      bool
}

func (d *decoder) markDamaged() { d.isDamaged, d.remainingInput, d.remainingText = true, nil, "" }

// takeBytes removes the first n bytes from the input and returns them. If the input has fewer than n bytes, takeBytes
// marks it as damaged.
func (d *decoder) takeBytes(n int) (taken string) {
	if n < 0 || n > len(d.remainingText) {
		d.markDamaged()
		return ""
	}
	taken, d.remainingInput, d.remainingText = d.remainingText[:n], d.remainingInput[n:], d.remainingText[n:]
	return taken
}

func (d *decoder) readInt() int64 {
	v, n := binary.Varint(d.remainingInput)
	if n <= 0 {
		d.markDamaged()
		return 0
	}
	d.takeBytes(n)
	return v
}

// readString decodes a length and that many bytes.
func (d *decoder) readString() string {
	length, n := binary.Uvarint(d.remainingInput)
	if n <= 0 || length > MaxFrameBytes {
		d.markDamaged()
		return ""
	}
	d.takeBytes(n)
	return d.takeBytes(int(length))
}

func (d *decoder) readBool() bool {
	b := d.takeBytes(1)
	if b > "\x01" {
		d.markDamaged()
	}
	return b == "\x01"
}

// readValue decodes the next value into v.
func (d *decoder) readValue(v reflect.Value) {
	switch v.Kind() {
	case reflect.Int64:
		v.SetInt(d.readInt())
	case reflect.Bool:
		v.SetBool(d.readBool())
	case reflect.String:
		v.SetString(d.readString())
	case reflect.Struct:
		for i := range v.NumField() {
			d.readValue(v.Field(i))
		}
	case reflect.Array:
		for i := range v.Len() {
			d.readValue(v.Index(i))
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			if s := d.readString(); s != "" {
				v.SetBytes([]byte(s))
			}
			return
		}
		n := d.readInt()
		// Check n before allocating memory for n entries.
		if n < 0 || n > int64(len(d.remainingInput)/minEncodedBytes(v.Type().Elem())) {
			d.markDamaged()
		} else if n > 0 {
			v.Set(reflect.MakeSlice(v.Type(), int(n), int(n)))
		}
		for i := range v.Len() {
			d.readValue(v.Index(i))
		}
	default:
		panic("wire: no frame may have a field of type " + v.Type().String())
	}
}

// minEncodedBytes returns the smallest size of an encoded value of a type, in bytes.
func minEncodedBytes(t reflect.Type) (n int) {
	if t.Kind() != reflect.Struct {
		return 1
	}
	for i := range t.NumField() {
		n += minEncodedBytes(t.Field(i).Type)
	}
	return n
}
