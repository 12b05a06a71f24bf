package wire

import (
	"encoding/binary"
	"reflect"
)

// A frame is encoded field by field, in the order of its struct. A number is encoded as a varint, and a
// flag as one byte. A text is encoded as its length, followed by its bytes. A list is encoded as the number
// of its entries, followed by the entries. A struct inside a frame is encoded as the sequence of its
// fields.

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
	for i := range v.Len() { // a list, or an array, which has no encoded length
		b = appendValue(b, v.Index(i))
	}
	return b
}

// decoder decodes values from its input. If the input is damaged, it sets a flag and decodes all further values
// as zero.
type decoder struct {
	raw     []byte
	text    string // contains the same bytes as raw; decoded texts share its memory
	damaged bool
}

func (d *decoder) fail() { d.damaged, d.raw, d.text = true, nil, "" }

// take removes the first n bytes from the input and returns them. If n is negative or larger than the
// input, the input is damaged.
func (d *decoder) take(n int) (first string) {
	if n < 0 || n > len(d.text) {
		d.fail()
		return ""
	}
	first, d.raw, d.text = d.text[:n], d.raw[n:], d.text[n:]
	return first
}

func (d *decoder) number() int64 {
	v, n := binary.Varint(d.raw)
	if n <= 0 {
		d.fail()
		return 0
	}
	d.take(n)
	return v
}

// bytes decodes a length and that many bytes.
func (d *decoder) bytes() string {
	length, n := binary.Uvarint(d.raw)
	if n <= 0 || length > MaxFrameBytes {
		d.fail()
		return ""
	}
	d.take(n)
	return d.take(int(length))
}

func (d *decoder) flag() bool {
	b := d.take(1)
	if b > "\x01" {
		d.fail()
	}
	return b == "\x01"
}

// value decodes the next value into v.
func (d *decoder) value(v reflect.Value) {
	switch v.Kind() {
	case reflect.Int64:
		v.SetInt(d.number())
	case reflect.Bool:
		v.SetBool(d.flag())
	case reflect.String:
		v.SetString(d.bytes())
	case reflect.Struct:
		for i := range v.NumField() {
			d.value(v.Field(i))
		}
	case reflect.Array:
		for i := range v.Len() {
			d.value(v.Index(i))
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			if s := d.bytes(); s != "" {
				v.SetBytes([]byte(s))
			}
			return
		}
		n := d.number()
		if n < 0 || n > int64(len(d.raw)/minBytes(v.Type().Elem())) { // check this before allocating memory
			d.fail()
		} else if n > 0 {
			v.Set(reflect.MakeSlice(v.Type(), int(n), int(n)))
		}
		for i := range v.Len() {
			d.value(v.Index(i))
		}
	default:
		panic("wire: no frame may have a field of type " + v.Type().String())
	}
}

// minBytes returns how many bytes an encoded value of a type takes at least.
func minBytes(t reflect.Type) (n int) {
	if t.Kind() != reflect.Struct {
		return 1
	}
	for i := range t.NumField() {
		n += minBytes(t.Field(i).Type)
	}
	return n
}
