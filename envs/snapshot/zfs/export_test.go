package zfs

// Unmount is one try to unmount a clone.
func (s *Store) Unmount(clone string) error {
	t := s.thing(kindSession, clone)
	return s.unmount(t.name, t.path)
}

// Answered is an error while a daemon is still asked something about what is
// mounted at path.
func Answered(path string) error {
	at, err := mountsAt(path)
	if err != nil {
		return err
	}
	if top := topmost(at, path); top != nil && top.FSType == "fuse.zfs" {
		return answered(top)
	}
	return nil
}
