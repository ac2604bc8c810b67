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
// take many times what they have in a frame. Headers count twice: when it is published again, a copy of them is made. What a View
// copies beside counts once more.
func MemorySize(m *Message) int64 {
	return int64(len(m.Body)) + 2*int64(tableMemory(m.Headers)) + int64(viewMemory(m.Headers))
}

// viewMemory is what userHeaders copies: the map of the headers where not all are the producer's as they are, and what holds a decimal.
func viewMemory(headers map[string]any) int {
	whole, size := true, 0
	for name, value := range headers {
		copied := plainMemory(value)
		size += copied
		whole = whole && copied == 0 && !isCount(name) && name != HeaderOriginal
	}
	if whole {
		return 0
	}
	return size + mapMemory(len(headers))
}

// plainMemory is what plain copies of a value; 0 where it holds no decimal.
func plainMemory(value any) (size int) {
	switch v := value.(type) {
	case Decimal:
		return perBox
	case map[string]any:
		for _, item := range v {
			size += plainMemory(item)
		}
		if size > 0 {
			size += mapMemory(len(v))
		}
	case []any:
		for _, item := range v {
			size += plainMemory(item)
		}
		if size > 0 {
			size += 2*perBox + perElement*len(v)
		}
	}
	return size
}

func tableMemory(headers map[string]any) int {
	size := mapMemory(len(headers))
	for name, value := range headers {
		size += allocated(len(name)) + valueMemory(value)
	}
	return size
}

// mapMemory is what a map takes without what is in it.
func mapMemory(entries int) int {
	switch {
	case entries == 0:
		return emptyMap
	case entries <= smallMap:
		return emptyMap + perSmall
	default:
		return emptyMap + perSmall + perEntry*entries
	}
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
