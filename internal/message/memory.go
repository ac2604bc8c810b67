package message

import "time"

// What headers take in memory beside their own bytes. A small map has room for some entries at once, and a larger one is not full.
const (
	emptyMap   = 48
	smallMap   = 8
	perSmall   = 288
	perEntry   = 80
	perElement = 20 // a list grows ahead of what is put into it
	perBox     = 16
)

// MemorySize estimates the bytes that a message takes in this process: those of its body, and of its headers, of which small ones
// take many times what they have in a frame. Headers count twice: when it is published again, a copy of them is made.
func MemorySize(m *Message) int64 { return int64(len(m.Body)) + 2*int64(tableMemory(m.Headers)) }

func tableMemory(headers map[string]any) int {
	if len(headers) == 0 {
		return emptyMap
	}
	size := emptyMap + perSmall
	if len(headers) > smallMap {
		size += perEntry * len(headers)
	}
	for name, value := range headers {
		size += allocated(len(name)) + valueMemory(value)
	}
	return size
}

// valueMemory leaves out the place of the value itself, which whatever holds it has counted.
func valueMemory(value any) int {
	switch v := value.(type) {
	case nil, bool, int8, uint8:
		return 0 // the runtime has them already
	case string:
		return perBox + allocated(len(v))
	case []byte:
		return 2*perBox + allocated(len(v))
	case map[string]any:
		return tableMemory(v)
	case []any:
		size := 2 * perBox
		for _, item := range v {
			size += perElement + valueMemory(item)
		}
		return size
	case time.Time:
		return 2 * perBox
	default:
		return perBox
	}
}

// allocated is what some bytes take where they are allocated by themselves.
func allocated(size int) int { return (size + 15) &^ 15 }
