//! MongoDB's error codes, code names and labels, in one table, and the error type that every room returns.
//!
//! Invariant: a code has one name, and both are those of MongoDB's public `error_codes.yml`; an error that MongoDB itself
//! raises by a bare number is named `Location<number>`. Drivers match on codes and labels, shells on code names.

use std::fmt;

/// Declares the named codes once: constant, number, wire name.
macro_rules! codes {
    ($($name:ident = $num:literal),* $(,)?) => {
        /// A MongoDB error code. Named codes are constants of this type.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub struct Code(pub i32);

        #[allow(non_upper_case_globals)]
        impl Code {
            $(pub const $name: Code = Code($num);)*

            /// The code's wire name (`codeName`), or `None` for a bare number.
            pub fn known_name(self) -> Option<&'static str> {
                match self.0 { $($num => Some(stringify!($name)),)* _ => None }
            }
        }
    };
}

codes! {
    OK = 0, InternalError = 1, BadValue = 2, NoSuchKey = 4, GraphContainsCycle = 5, HostUnreachable = 6, HostNotFound = 7,
    UnknownError = 8, FailedToParse = 9, CannotMutateObject = 10, UserNotFound = 11, UnsupportedFormat = 12,
    Unauthorized = 13, TypeMismatch = 14, Overflow = 15, InvalidLength = 16, ProtocolError = 17,
    AuthenticationFailed = 18, CannotReuseObject = 19, IllegalOperation = 20, EmptyArrayOperation = 21,
    InvalidBSON = 22, AlreadyInitialized = 23, LockTimeout = 24, RemoteValidationError = 25, NamespaceNotFound = 26,
    IndexNotFound = 27, PathNotViable = 28, NonExistentPath = 29, InvalidPath = 30, RoleNotFound = 31,
    RolesNotRelated = 32, PrivilegeNotFound = 33, CannotBackfillArray = 34, UserModificationFailed = 35,
    RemoteChangeDetected = 36, FileRenameFailed = 37, FileNotOpen = 38, FileStreamFailed = 39,
    ConflictingUpdateOperators = 40, FileAlreadyOpen = 41, LogWriteFailed = 42, CursorNotFound = 43,
    UserDataInconsistent = 45, LockBusy = 46, NoMatchingDocument = 47, NamespaceExists = 48, InvalidRoleModification = 49,
    MaxTimeMSExpired = 50, ManualInterventionRequired = 51, DollarPrefixedFieldName = 52, InvalidIdField = 53,
    NotSingleValueField = 54, InvalidDBRef = 55, EmptyFieldName = 56, DottedFieldName = 57, RoleModificationFailed = 58,
    CommandNotFound = 59, ShardKeyNotFound = 61, OplogOperationUnsupported = 62, StaleShardVersion = 63,
    WriteConcernFailed = 64, MultipleErrorsOccurred = 65, ImmutableField = 66, CannotCreateIndex = 67,
    IndexAlreadyExists = 68, AuthSchemaIncompatible = 69, ShardNotFound = 70, ReplicaSetNotFound = 71,
    InvalidOptions = 72, InvalidNamespace = 73, NodeNotFound = 74, WriteConcernLegacyOK = 75, NoReplicationEnabled = 76,
    OperationIncomplete = 77, CommandResultSchemaViolation = 78, UnknownReplWriteConcern = 79, RoleDataInconsistent = 80,
    NoMatchParseContext = 81, NoProgressMade = 82, RemoteResultsUnavailable = 83, IndexOptionsConflict = 85,
    IndexKeySpecsConflict = 86, CannotSplit = 87, NetworkTimeout = 89, CallbackCanceled = 90, ShutdownInProgress = 91,
    SecondaryAheadOfPrimary = 92, InvalidReplicaSetConfig = 93, NotYetInitialized = 94, NotSecondary = 95,
    OperationFailed = 96, NoProjectionFound = 97, DBPathInUse = 98, UnsatisfiableWriteConcern = 100, OutdatedClient = 101,
    IncompatibleAuditMetadata = 102, NewReplicaSetConfigurationIncompatible = 103, NodeNotElectable = 104,
    WriteConflict = 112, ConflictingOperationInProgress = 117, NamespaceNotSharded = 118, DocumentValidationFailure = 121,
    NotAReplicaSet = 123, IncompatibleElectionProtocol = 124, CommandFailed = 125, RPCProtocolNegotiationFailed = 126,
    LockFailed = 128, ReadConcernMajorityNotEnabled = 148, StaleConfig = 13388,
    LegacyDuplicateKey = 11001, DuplicateKey = 11000, InterruptedAtShutdown = 11600, Interrupted = 11601,
    InterruptedDueToReplStateChange = 11602, BackgroundOperationInProgressForDatabase = 12586,
    BackgroundOperationInProgressForNamespace = 12587, NotWritablePrimary = 10107, BSONObjectTooLarge = 10334,
    NotPrimaryNoSecondaryOk = 13435, NotPrimaryOrSecondary = 13436, OutOfDiskSpace = 14031, KeyTooLong = 17280,
    ViewDepthLimitExceeded = 165, CommandNotSupportedOnView = 166, OptionNotSupportedOnView = 167,
    InvalidPipelineOperator = 168, CommandOnShardedViewNotSupportedOnMongod = 169, TooManyMatchingDocuments = 170,
    CannotIndexParallelArrays = 171, QueryPlanKilled = 175, QueryPlanKilledLegacy = 176, StaleClusterTime = 180,
    CannotVerifyAndSignLogicalTime = 210, KeyNotFound = 211, IncompatibleRollbackAlgorithm = 212,
    DuplicateSession = 213, AuthenticationRestrictionUnmet = 214, InvalidUUID = 207, InvalidViewDefinition = 182,
    JSInterpreterFailure = 139, AmbiguousIndexKeyPattern = 181, ClientMetadataMissingField = 183,
    ClientMetadataAppNameTooLarge = 184, ClientMetadataDocumentTooLarge = 185, ClientMetadataCannotBeMutated = 186,
    CursorInUse = 20010, JSUncatchableError = 226, ExceededTimeLimit = 262, CursorKilled = 237,
    SnapshotTooOld = 239, SnapshotUnavailable = 246, TransactionTooOld = 225, NoSuchTransaction = 251,
    TransactionCommitted = 256, TransactionTooLarge = 257, UnknownFeatureCompatibilityVersion = 258,
    OperationNotSupportedInTransaction = 263, TooManyLogicalSessions = 261, TransactionExceededLifetimeLimitSeconds = 290,
    NoQueryExecutionPlans = 291, QueryExceededMemoryLimitNoDiskUseAllowed = 292, InvalidSeedList = 293,
    InvalidTopologyType = 294, InvalidHeartBeatFrequency = 295, TopologySetNameRequired = 296,
    HierarchicalAcquisitionLevelViolation = 297, InvalidServerType = 298, OperationCannotBeBatched = 303,
    InvalidBSONType = 308, InternalErrorNotSupported = 235, CollectionUUIDMismatch = 361, TransactionParticipantFailedUnyield = 393,
    APIVersionError = 322, APIStrictError = 323, APIDeprecationError = 324, ChangeStreamHistoryLost = 286,
    ChangeStreamFatalError = 280, QueryFeatureNotAllowed = 224, IncompatibleShardingMetadata = 259,
    InvalidIndexSpecificationOption = 197, OBSOLETE_ReceivedOpReplyMessage = 198, MechanismUnavailable = 334,
    IndexBuildAborted = 276, IndexBuildAlreadyInProgress = 299, StaleTerm = 347, MovePrimaryInProgress = 287,
    SocketException = 9001, CannotInsertTimeseriesBucketsWithMixedSchema = 408, RetryChangeStream = 234,
    MaxSubPipelineDepthExceeded = 232, TooManyDocumentSequences = 233, IncompleteTransactionHistory = 217,
    UnsupportedOpQueryCommand = 352, NonConformantBSON = 356, ClientDisconnect = 279, NotImplemented = 238,
    UpdateOperationFailed = 218, FTDCPathNotSet = 219, FTDCPathAlreadySet = 220, IndexModified = 221,
    CloseChangeStream = 222, IllegalOpMsgFlag = 223, NoSuchSession = 206, BrokenPromise = 202, ElectionInProgress = 216,
    ConversionFailure = 241, ResumableRangeDeleterDisabled = 325, LockTimeoutLegacy = 240, UnrecoverableRollbackError = 127,
    UnsatisfiableCommitQuorum = 327, OplogQueryMinTsMissing = 326, TenantMigrationConflict = 330,
}

/// Never sent to a client: the command cannot finish on an event loop and must be run again on a worker.
const OFFLOAD: Code = Code(-1);

impl Code {
    /// The wire name: the table's, or `Location<number>`.
    pub fn name(self) -> String {
        match self.known_name() {
            Some(n) => n.to_string(),
            None => format!("Location{}", self.0),
        }
    }
}

/// What a room answers when it cannot do what it was asked.
#[derive(Clone, Debug)]
pub struct Error {
    pub code: Code,
    pub message: String,
    /// `errorLabels` of the reply.
    pub labels: Vec<&'static str>,
    /// A whole BSON document whose fields the reply carries beside the error (`keyPattern`, `keyValue`, `errInfo`, …).
    pub extra: Option<Vec<u8>>,
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub fn new(code: Code, message: impl Into<String>) -> Error {
        Error { code, message: message.into(), labels: Vec::new(), extra: None }
    }

    /// An error that MongoDB raises by a bare number (`Location<number>`).
    pub fn coded(code: i32, message: impl Into<String>) -> Error {
        Error::new(Code(code), message)
    }

    /// Our own bug: answered as InternalError, never a panic.
    pub fn internal(message: impl Into<String>) -> Error {
        Error::new(Code::InternalError, message)
    }

    /// The command would exceed its budget on the event loop, wait for a disk or for a latch: run it on a worker instead.
    pub fn offload() -> Error {
        Error::new(OFFLOAD, String::new())
    }

    pub fn is_offload(&self) -> bool {
        self.code == OFFLOAD
    }

    pub fn with_label(mut self, label: &'static str) -> Error {
        self.labels.push(label);
        self
    }

    pub fn with_extra(mut self, doc: Vec<u8>) -> Error {
        self.extra = Some(doc);
        self
    }

    /// Prefixes the message, as MongoDB does when it adds context (`ctx :: caused by :: message`).
    pub fn context(mut self, ctx: &str) -> Error {
        if !self.is_offload() {
            self.message = format!("{ctx} :: caused by :: {}", self.message);
        }
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.code.name(), self.code.0, self.message)
    }
}

impl std::error::Error for Error {}

/// `err!(BadValue, "fmt {}", x)` or `err!(40415, "fmt")`: an [`Error`] by code name or bare number.
#[macro_export]
macro_rules! err {
    ($code:ident, $($arg:tt)*) => { $crate::Error::new($crate::Code::$code, format!($($arg)*)) };
    ($code:literal, $($arg:tt)*) => { $crate::Error::coded($code, format!($($arg)*)) };
}

/// `bail!(BadValue, "fmt {}", x)`: returns the error.
#[macro_export]
macro_rules! bail {
    ($($arg:tt)*) => { return Err($crate::err!($($arg)*)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(Code::DuplicateKey.name(), "DuplicateKey");
        assert_eq!(Code(40415).name(), "Location40415");
        assert!(Error::offload().is_offload());
        assert_eq!(err!(BadValue, "x {}", 1).message, "x 1");
    }
}
