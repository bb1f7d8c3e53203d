//! Which topics each subscriber may read, where users are named.
//!
//! ```text
//! SUBSCRIBE topic ─► all that begins so may be read   ─► into the trie
//!                 ├► some of it                       ─► into the trie, and each topic of a burst is looked at
//!                 └► none of it                       ─► refused: it is not in the trie
//! ```
//! So a subscriber that may read all that it wants costs a message nothing. The others cost a comparison for each topic
//! of a burst, however many messages have that topic one after the other.
//!
//! A subscription stays a single subscription, however few topics the user may read. It is counted once, and cancelled
//! by its own text.

use ahash::AHashMap;

use super::topics::Member;
use crate::security::{Access, Coverage, Identity, Permissions, Resource};

/// Where the name of the table stands in a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopicForm {
    /// A topic begins with the name. A NUL may follow it.
    Name,
    /// A topic is the length of the name, in one byte, and the name.
    LengthAndName,
}

impl TopicForm {
    /// How much of the topics that begin so a user may read.
    pub(super) fn coverage(self, permissions: &Permissions, beginning: &[u8]) -> Coverage {
        match (self, beginning) {
            (Self::LengthAndName, [length, name @ ..]) => permissions.readable_tables(name, usize::from(*length)),
            (Self::Name, _) | (Self::LengthAndName, []) => permissions.readable_tables(beginning, usize::MAX),
        }
    }

    /// Whether a user may read a topic.
    pub(super) fn allows(self, permissions: &Permissions, topic: &[u8]) -> bool {
        let name = match self {
            Self::Name => topic,
            Self::LengthAndName => topic.get(1..).unwrap_or_default(),
        };
        // What follows the name does not matter: a prefix that is granted has no NUL.
        permissions.allow(Access::Read, Resource::Table(name))
    }
}

/// The subscribers that may read a part of what they subscribe to.
#[derive(Debug)]
pub(super) struct Readers {
    form: TopicForm,
    /// Of each the user.
    partial: AHashMap<Member, Identity>,
}

impl Readers {
    pub(super) fn new(form: TopicForm) -> Self {
        Self { form, partial: AHashMap::new() }
    }

    /// Whether there are none: every subscriber may read all that it subscribes to.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.partial.is_empty()
    }

    /// Whether a subscriber may have this subscription. It then receives the topics that the user may read.
    pub(super) fn admit(&mut self, member: Member, user: &Identity, topic: &[u8]) -> bool {
        match self.form.coverage(user.permissions(), topic) {
            Coverage::All => true,
            Coverage::Some => {
                self.partial.entry(member).or_insert_with(|| user.clone());
                true
            }
            Coverage::None => {
                user.note_denied();
                false
            }
        }
    }

    /// Whether a subscriber may read this topic, which fits one of its subscriptions.
    pub(super) fn may_read(&self, member: Member, topic: &[u8]) -> bool {
        self.partial.get(&member).is_none_or(|user| self.form.allows(user.permissions(), topic))
    }

    /// Forgets a subscriber that gets no more messages.
    pub(super) fn remove(&mut self, member: Member) {
        self.partial.remove(&member);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::burst::Burst;
    use super::super::topics::Topics;
    use super::*;
    use crate::security::{Denied, Users};

    fn user(prefixes: &[Vec<u8>]) -> Identity {
        let mut permissions = Permissions::default();
        prefixes.iter().for_each(|prefix| permissions.tables.grant(Access::Read, prefix));
        Identity::invented(permissions)
    }

    fn topic_of(form: TopicForm, name: &[u8]) -> Vec<u8> {
        match form {
            TopicForm::Name => [name, b"\0"].concat(),
            TopicForm::LengthAndName => [&[u8::try_from(name.len()).unwrap_or(u8::MAX)], name].concat(),
        }
    }

    #[test]
    fn a_subscription_of_the_feed_fits_names_of_one_length() {
        let user = user(&[b"eu-".to_vec()]);
        let coverage = |topic: &[u8]| TopicForm::LengthAndName.coverage(user.permissions(), topic);
        assert_eq!(coverage(b""), Coverage::Some);
        assert_eq!(coverage(b"\x04"), Coverage::Some);
        assert_eq!(coverage(b"\x02"), Coverage::None, "no name of two bytes begins with eu-");
        assert_eq!(coverage(b"\x05eu-or"), Coverage::All);
        assert_eq!(coverage(b"\x05us-or"), Coverage::None);
        assert_eq!(coverage(b"eu-"), Coverage::None, "e is a length here");
    }

    #[test]
    fn a_refused_subscription_is_counted() {
        let (users, user) = Users::invented(Permissions::default());
        assert!(!Readers::new(TopicForm::Name).admit(0, &user, b"eu-"));
        assert_eq!(users.refusals(Denied::Permission), 1);
    }

    /// Short words of few letters, so that many of them begin with others.
    fn word() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(1_u8..4, 0..4)
    }

    /// What a subscriber may say: a word, with a length before it or not.
    fn topic() -> impl Strategy<Value = Vec<u8>> {
        (word(), prop::option::of(0_u8..5)).prop_map(|(word, length)| length.into_iter().chain(word).collect())
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_subscriber_gets_what_it_wants_and_may_read_and_nothing_else(
            is_feed in any::<bool>(),
            granted in prop::collection::vec(prop::collection::vec(word(), 0..4), 3),
            said in prop::collection::vec((0_usize..3, any::<bool>(), topic()), 0..30),
            names in prop::collection::vec(word(), 10),
        ) {
            let form = if is_feed { TopicForm::LengthAndName } else { TopicForm::Name };
            let users: Vec<Identity> = granted.iter().map(|prefixes| user(prefixes)).collect();
            let (mut topics, mut readers) = (Topics::new(), Readers::new(form));
            let mut wanted: Vec<Vec<Vec<u8>>> = vec![Vec::new(); users.len()];
            for (index, subscribes, topic) in &said {
                let (Some(user), Some(wanted), Ok(member)) =
                    (users.get(*index), wanted.get_mut(*index), Member::try_from(*index)) else { continue };
                wanted.retain(|other| other != topic);
                if *subscribes {
                    wanted.push(topic.clone());
                    if readers.admit(member, user, topic) {
                        topics.subscribe(topic, member);
                    }
                } else {
                    topics.cancel(topic, member);
                }
            }
            for name in &names {
                let topic = topic_of(form, name);
                let mut burst = Burst::default();
                burst.add(&topics, &readers, &topic, |bytes| bytes.push(b'.'));
                let mut found = Vec::new();
                burst.for_each(|member, _| found.push(member as usize));
                let expected: Vec<usize> = (0..users.len())
                    .filter(|index| wanted.get(*index).is_some_and(|all| all.iter().any(|one| topic.starts_with(one))))
                    .filter(|index| granted.get(*index).is_some_and(|all| all.iter().any(|one| name.starts_with(one))))
                    .collect();
                prop_assert_eq!(found, expected, "{:?}", topic);
            }
        }
    }
}
