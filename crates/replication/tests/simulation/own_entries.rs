//! Entries that a primary has proposed are applied by its store.

use super::disk::{SimLog, payload};
use replication::member::{Member, MemberRole};
use replication::state_file::SavedState;

fn sync(log: &SimLog, member: &mut Member<SimLog>) {
    {
        let mut disk = log.0.borrow_mut();
        disk.synced = disk.log.len();
    }
    member.synced().unwrap();
}

#[test]
fn a_primary_leaves_what_it_has_proposed_to_its_store() {
    let log = SimLog::default();
    let mut state = SavedState {
        id: 1,
        founder: 1,
        ..SavedState::default()
    };
    state.voters.voters = vec![1];
    let mut member = Member::new(log.clone(), state, 7).unwrap();
    member.campaign().unwrap();
    sync(&log, &mut member);
    assert_eq!(member.role(), MemberRole::Primary);
    let before = log.0.borrow().applied;
    assert_eq!(before, 1, "what its term begins with it applies itself");

    // It is in the log and on disk, and its writer has not come to applying it.
    let appended = log.0.borrow_mut().make(payload(1, None));
    {
        let mut disk = log.0.borrow_mut();
        disk.applied = before;
        disk.engine.pop();
    }
    let index = appended.index;
    member.appended(vec![appended]).unwrap();
    sync(&log, &mut member);
    assert_eq!(member.commit_index(), index);
    assert_eq!(log.0.borrow().applied, before);
}
