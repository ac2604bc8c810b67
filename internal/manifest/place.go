package manifest

import "k8s.io/apimachinery/pkg/types"

// Place says where an object was read: the file, and the document in it. It is empty for an object that is not in the Set.
func (s *Set) Place(kind string, name types.NamespacedName) string {
	return s.places[key{kind, name}]
}
