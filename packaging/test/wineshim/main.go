// Command wineshim writes a bcryptprimitives.dll for Wine 8, which lacks this library. Without the library, no Go
// program starts. The library that wineshim writes contains no code. It forwards calls of the only function that Go
// needs to the equivalent function of Wine.
package main

import (
	"bytes"
	"debug/pe"
	"encoding/binary"
	"fmt"
	"os"
)

const (
	// The library has one function, functionName. The loader forwards its calls to the function forwardTarget of
	// Wine.
	libraryName   = "bcryptprimitives.dll"
	functionName  = "ProcessPrng"
	forwardTarget = "advapi32.SystemFunction036"

	// pageBytes is the alignment of the sections in memory. The headers take the first page, and the only
	// section begins at the second.
	pageBytes = 0x1000
	// sectorBytes is the alignment of the sections in the file. The headers take the first sector, and the only
	// section begins at the second.
	sectorBytes = 0x200
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: wineshim FILE")
		os.Exit(2)
	}
	if err := os.WriteFile(os.Args[1], buildDLL(), 0o644); err != nil {
		fmt.Fprintln(os.Stderr, "wineshim:", err)
		os.Exit(1)
	}
}

// buildDLL returns the content of the file: headers in the first sector, exports in the second.
func buildDLL() []byte {
	exports := exportTable()
	size := uint32(len(exports))
	var out bytes.Buffer
	dos := [64]byte{0: 'M', 1: 'Z', 60: 64} // the PE header follows immediately
	optional := pe.OptionalHeader64{
		Magic:                 0x20b,
		SizeOfInitializedData: sectorBytes,
		ImageBase:             0x180000000,
		SectionAlignment:      pageBytes,
		FileAlignment:         sectorBytes,
		// Version 10 is Windows 10, the oldest version that Go supports.
		MajorOperatingSystemVersion: 10,
		MajorSubsystemVersion:       10,
		SizeOfImage:                 2 * pageBytes,
		SizeOfHeaders:               sectorBytes,
		Subsystem:                   pe.IMAGE_SUBSYSTEM_WINDOWS_CUI,
		DllCharacteristics:          pe.IMAGE_DLLCHARACTERISTICS_NX_COMPAT,
		SizeOfStackReserve:          1 << 20,
		SizeOfStackCommit:           pageBytes,
		SizeOfHeapReserve:           1 << 20,
		SizeOfHeapCommit:            pageBytes,
		NumberOfRvaAndSizes:         16,
	}
	optional.DataDirectory[pe.IMAGE_DIRECTORY_ENTRY_EXPORT] = pe.DataDirectory{VirtualAddress: pageBytes, Size: size}
	for _, header := range []any{
		dos,
		[4]byte{'P', 'E'},
		pe.FileHeader{
			Machine:              pe.IMAGE_FILE_MACHINE_AMD64,
			NumberOfSections:     1,
			SizeOfOptionalHeader: uint16(binary.Size(optional)),
			Characteristics:      pe.IMAGE_FILE_EXECUTABLE_IMAGE | pe.IMAGE_FILE_LARGE_ADDRESS_AWARE | pe.IMAGE_FILE_DLL,
		},
		optional,
		pe.SectionHeader32{
			Name:             [8]uint8([]byte(".rdata\x00\x00")),
			VirtualSize:      size,
			VirtualAddress:   pageBytes,
			SizeOfRawData:    sectorBytes,
			PointerToRawData: sectorBytes,
			Characteristics:  pe.IMAGE_SCN_CNT_INITIALIZED_DATA | pe.IMAGE_SCN_MEM_READ,
		},
	} {
		appendValue(&out, header)
	}
	out.Write(make([]byte, sectorBytes-out.Len()))
	out.Write(exports)
	out.Write(make([]byte, 2*sectorBytes-out.Len()))
	return out.Bytes()
}

// exportTable returns the export table, which contains one function. The address of the function points to a text
// inside the table. The loader takes such an address to mean that the text names another function, and forwards calls
// to that function.
func exportTable() []byte {
	type directory struct {
		_                                               [12]byte
		Name, Base, FunctionCount                       uint32
		NameCount                                       uint32
		FunctionsAddress, NamesAddress, OrdinalsAddress uint32
	}
	type tables struct {
		Function, Name uint32
		Ordinal, _     uint16
	}
	first := uint32(pageBytes + binary.Size(directory{}))
	texts := first + uint32(binary.Size(tables{}))
	nameAddress := func(textsBefore ...string) uint32 {
		address := texts
		for _, text := range textsBefore {
			address += uint32(len(text)) + 1
		}
		return address
	}
	var out bytes.Buffer
	appendValue(&out, directory{
		Name: nameAddress(), Base: 1, FunctionCount: 1, NameCount: 1,
		FunctionsAddress: first, NamesAddress: first + 4, OrdinalsAddress: first + 8,
	})
	appendValue(&out, tables{Function: nameAddress(libraryName, functionName), Name: nameAddress(libraryName)})
	out.WriteString(libraryName + "\x00" + functionName + "\x00" + forwardTarget + "\x00")
	return out.Bytes()
}

// appendValue appends a value in the encoding of the file format.
func appendValue(out *bytes.Buffer, value any) {
	if err := binary.Write(out, binary.LittleEndian, value); err != nil {
		panic(err) // binary.Write fails only for a value without a fixed size
	}
}
