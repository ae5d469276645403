//! MongoDB's error codes, code names and labels, in one table; the error type that every room
//! returns; and [`Stop`], for work that may end early without having failed.
//!
//! Invariant: a code has one name, and both are those of MongoDB's public `error_codes.yml`; an
//! error that MongoDB itself raises by a bare number is named `Location<number>`. Drivers match on
//! codes and labels, shells on code names.

pub mod operation;

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
    OK = 0, InternalError = 1, BadValue = 2, NoSuchKey = 4, GraphContainsCycle = 5, HostUnreachable = 6,
    HostNotFound = 7, UnknownError = 8, FailedToParse = 9, CannotMutateObject = 10, UserNotFound = 11,
    UnsupportedFormat = 12, Unauthorized = 13, TypeMismatch = 14, Overflow = 15, InvalidLength = 16,
    ProtocolError = 17, AuthenticationFailed = 18, CannotReuseObject = 19, IllegalOperation = 20,
    EmptyArrayOperation = 21, InvalidBSON = 22, AlreadyInitialized = 23, LockTimeout = 24,
    RemoteValidationError = 25, NamespaceNotFound = 26, IndexNotFound = 27, PathNotViable = 28, NonExistentPath = 29,
    InvalidPath = 30, RoleNotFound = 31, RolesNotRelated = 32, PrivilegeNotFound = 33, CannotBackfillArray = 34,
    UserModificationFailed = 35, RemoteChangeDetected = 36, FileRenameFailed = 37, FileNotOpen = 38,
    FileStreamFailed = 39, ConflictingUpdateOperators = 40, FileAlreadyOpen = 41, LogWriteFailed = 42,
    CursorNotFound = 43, UserDataInconsistent = 45, LockBusy = 46, NoMatchingDocument = 47, NamespaceExists = 48,
    InvalidRoleModification = 49, MaxTimeMSExpired = 50, ManualInterventionRequired = 51,
    DollarPrefixedFieldName = 52, InvalidIdField = 53, NotSingleValueField = 54, InvalidDBRef = 55,
    EmptyFieldName = 56, DottedFieldName = 57, RoleModificationFailed = 58, CommandNotFound = 59,
    ShardKeyNotFound = 61, OplogOperationUnsupported = 62, WriteConcernFailed = 64, MultipleErrorsOccurred = 65,
    ImmutableField = 66, CannotCreateIndex = 67, IndexAlreadyExists = 68, AuthSchemaIncompatible = 69,
    ShardNotFound = 70, ReplicaSetNotFound = 71, InvalidOptions = 72, InvalidNamespace = 73, NodeNotFound = 74,
    WriteConcernLegacyOK = 75, NoReplicationEnabled = 76, OperationIncomplete = 77,
    CommandResultSchemaViolation = 78, UnknownReplWriteConcern = 79, RoleDataInconsistent = 80,
    NoMatchParseContext = 81, NoProgressMade = 82, RemoteResultsUnavailable = 83, IndexOptionsConflict = 85,
    IndexKeySpecsConflict = 86, CannotSplit = 87, NetworkTimeout = 89, CallbackCanceled = 90,
    ShutdownInProgress = 91, SecondaryAheadOfPrimary = 92, InvalidReplicaSetConfig = 93, NotYetInitialized = 94,
    NotSecondary = 95, OperationFailed = 96, NoProjectionFound = 97, DBPathInUse = 98,
    UnsatisfiableWriteConcern = 100, OutdatedClient = 101, IncompatibleAuditMetadata = 102,
    NewReplicaSetConfigurationIncompatible = 103, NodeNotElectable = 104, IncompatibleShardingMetadata = 105,
    DistributedClockSkewed = 106, LockFailed = 107, InconsistentReplicaSetNames = 108, ConfigurationInProgress = 109,
    CannotInitializeNodeWithData = 110, NotExactValueField = 111, WriteConflict = 112, InitialSyncFailure = 113,
    CommandNotSupported = 115, DocTooLargeForCapped = 116, ConflictingOperationInProgress = 117,
    NamespaceNotSharded = 118, InvalidSyncSource = 119, OplogStartMissing = 120, DocumentValidationFailure = 121,
    NotAReplicaSet = 123, IncompatibleElectionProtocol = 124, CommandFailed = 125,
    RPCProtocolNegotiationFailed = 126, UnrecoverableRollbackError = 127, LockNotFound = 128,
    LockStateChangeFailed = 129, SymbolNotFound = 130, FailedToSatisfyReadPreference = 133,
    ReadConcernMajorityNotAvailableYet = 134, StaleTerm = 135, CappedPositionLost = 136,
    IncompatibleShardingConfigVersion = 137, RemoteOplogStale = 138, JSInterpreterFailure = 139,
    InvalidSSLConfiguration = 140, SSLHandshakeFailed = 141, JSUncatchableError = 142, CursorInUse = 143,
    ExceededMemoryLimit = 146, ZLibError = 147, ReadConcernMajorityNotEnabled = 148, NoConfigPrimary = 149,
    StaleEpoch = 150, OperationCannotBeBatched = 151, OplogOutOfOrder = 152, ChunkTooBig = 153, MustUpgrade = 158,
    DurationOverflow = 159, MaxStalenessOutOfRange = 160, IncompatibleCollationVersion = 161,
    CollectionIsEmpty = 162, ZoneStillInUse = 163, InitialSyncActive = 164, ViewDepthLimitExceeded = 165,
    CommandNotSupportedOnView = 166, OptionNotSupportedOnView = 167, InvalidPipelineOperator = 168,
    CommandOnShardedViewNotSupportedOnMongod = 169, TooManyMatchingDocuments = 170, CannotIndexParallelArrays = 171,
    TransportSessionClosed = 172, TransportSessionNotFound = 173, TransportSessionUnknown = 174,
    QueryPlanKilled = 175, FileOpenFailed = 176, ZoneNotFound = 177, RangeOverlapConflict = 178,
    AmbiguousIndexKeyPattern = 181, InvalidViewDefinition = 182, ClientMetadataMissingField = 183,
    ClientMetadataAppNameTooLarge = 184, ClientMetadataDocumentTooLarge = 185, ClientMetadataCannotBeMutated = 186,
    LinearizableReadConcernError = 187, IncompatibleServerVersion = 188, PrimarySteppedDown = 189,
    FailPointEnabled = 192, BalancerInterrupted = 194, ViewPipelineMaxSizeExceeded = 195,
    InvalidIndexSpecificationOption = 197, CannotBuildIndexKeys = 201, NetworkInterfaceExceededTimeLimit = 202,
    ShardingStateNotInitialized = 203, TimeProofMismatch = 204, ClusterTimeFailsRateLimiter = 205,
    NoSuchSession = 206, InvalidUUID = 207, TooManyLocks = 208, StaleClusterTime = 209,
    CannotVerifyAndSignLogicalTime = 210, KeyNotFound = 211, IncompatibleRollbackAlgorithm = 212,
    DuplicateSession = 213, AuthenticationRestrictionUnmet = 214, DatabaseDropPending = 215,
    ElectionInProgress = 216, IncompleteTransactionHistory = 217, UpdateOperationFailed = 218, FTDCPathNotSet = 219,
    FTDCPathAlreadySet = 220, IndexModified = 221, CloseChangeStream = 222, IllegalOpMsgFlag = 223,
    QueryFeatureNotAllowed = 224, TransactionTooOld = 225, AtomicityFailure = 226,
    CannotImplicitlyCreateCollection = 227, SessionTransferIncomplete = 228, MustDowngrade = 229,
    DNSHostNotFound = 230, DNSProtocolError = 231, MaxSubPipelineDepthExceeded = 232, TooManyDocumentSequences = 233,
    RetryChangeStream = 234, InternalErrorNotSupported = 235, CursorKilled = 237, NotImplemented = 238,
    SnapshotTooOld = 239, DNSRecordTypeMismatch = 240, ConversionFailure = 241, CannotCreateCollection = 242,
    BrokenPromise = 245, SnapshotUnavailable = 246, StaleDbVersion = 249, StaleChunkHistory = 250,
    NoSuchTransaction = 251, ReentrancyNotAllowed = 252, TransactionCommitted = 256, TransactionTooLarge = 257,
    UnknownFeatureCompatibilityVersion = 258, InvalidResumeToken = 260, TooManyLogicalSessions = 261,
    ExceededTimeLimit = 262, OperationNotSupportedInTransaction = 263, TooManyFilesOpen = 264,
    OrphanedRangeCleanUpFailed = 265, FailPointSetFailed = 266, PreparedTransactionInProgress = 267,
    CannotBackup = 268, DataModifiedByRepair = 269, RepairedReplicaSetNode = 270,
    JSInterpreterFailureWithStack = 271, MigrationConflict = 272, IndexBuildAborted = 276,
    UnsatisfiableCommitQuorum = 278, ClientDisconnect = 279, ChangeStreamFatalError = 280,
    TransactionCoordinatorSteppingDown = 281, WouldChangeOwningShard = 283, IndexBuildAlreadyInProgress = 285,
    ChangeStreamHistoryLost = 286, ChecksumMismatch = 288, TransactionExceededLifetimeLimitSeconds = 290,
    NoQueryExecutionPlans = 291, QueryExceededMemoryLimitNoDiskUseAllowed = 292, InvalidSeedList = 293,
    InvalidTopologyType = 294, InvalidHeartBeatFrequency = 295, TopologySetNameRequired = 296,
    HierarchicalAcquisitionLevelViolation = 297, InvalidServerType = 298, DataCorruptionDetected = 301,
    SplitHorizonChange = 303, CurrentConfigNotCommittedYet = 308, ExhaustCommandFinished = 309,
    PeriodicJobIsStopped = 310, ResumableRangeDeleterDisabled = 313, ObjectIsBusy = 314, MovePrimaryInProgress = 319,
    APIVersionError = 322, APIStrictError = 323, APIDeprecationError = 324, OplogQueryMinTsMissing = 326,
    CannotDowngrade = 332, MechanismUnavailable = 334, ReshardCollectionInProgress = 338, NoSuchReshardCollection = 339,
    ReshardCollectionCommitted = 340, ReshardCollectionAborted = 341, ReshardingCriticalSectionTimeout = 342,
    AuditingNotEnabled = 344, ChangeStreamInvalidated = 346,
    APIMismatchError = 347, KeyPatternShorterThanBound = 349, UnsupportedOpQueryCommand = 352,
    LoadBalancerSupportMismatch = 354, InterruptedDueToStorageChange = 355, TxnRetryCounterTooOld = 356,
    InvalidBSONType = 357, CannotConvertIndexToUnique = 359, CollectionUUIDMismatch = 361,
    RetryableTransactionInProgress = 363, TemporarilyUnavailable = 365, CannotDropShardKeyIndex = 370,
    UserWritesBlocked = 371, ChangeStreamNotEnabled = 376, NonConformantBSON = 378,
    TransactionTooLargeForCache = 388, LibmongocryptError = 389, ReauthenticationRequired = 391,
    InvalidTenantId = 393, StreamTerminated = 398, CannotUpgrade = 400, ResourceExhausted = 402,
    CannotInsertTimeseriesBucketsWithMixedSchema = 408, QueryRejectedBySettings = 411, UpdatesStillPending = 412,
    SocketException = 9001, CannotGrowDocumentInCappedNamespace = 10003, LegacyNotPrimary = 10058,
    NotWritablePrimary = 10107, BSONObjectTooLarge = 10334, DuplicateKey = 11000, InterruptedAtShutdown = 11600,
    Interrupted = 11601, InterruptedDueToReplStateChange = 11602, BackgroundOperationInProgressForDatabase = 12586,
    BackgroundOperationInProgressForNamespace = 12587, MergeStageNoMatchingDocument = 13113,
    DatabaseDifferCase = 13297, StaleConfig = 13388, NotPrimaryNoSecondaryOk = 13435, NotPrimaryOrSecondary = 13436,
    OutOfDiskSpace = 14031, NamespaceCannotBeSharded = 28769, SearchNotEnabled = 31082, IDLDuplicateField = 40413,
    IDLFailedToParse = 40414, IDLUnknownField = 40415, ClientMarkedKilled = 46841, NotARetryableWriteCommand = 50768,
}

impl Code {
    /// The wire name: the table's, or `Location<number>`.
    pub fn name(self) -> String {
        match self.known_name() {
            Some(n) => n.to_string(),
            None => format!("Location{}", self.0),
        }
    }
}

/// What a room answers when it cannot do what it was asked: one pointer, so that a [`Result`] is no
/// longer than what it holds when all is well, and hot paths do not move room for errors that
/// hardly ever come.
#[derive(Clone, Debug)]
pub struct Error(Box<ErrorParts>);

/// The parts of an [`Error`].
#[derive(Clone, Debug)]
pub struct ErrorParts {
    pub code: Code,
    pub message: String,
    /// `errorLabels` of the reply.
    pub labels: Vec<&'static str>,
    /// A whole BSON document whose fields the reply carries beside the error (`keyPattern`,
    /// `keyValue`, `errInfo`, …).
    pub extra: Option<Vec<u8>>,
}

/// Why work ended before it was done.
#[derive(Clone, Debug)]
pub enum Stop {
    Failed(Error),
    /// Nothing was changed: it can be run again when it has what it lacks.
    Suspended(Suspension),
}

/// What work lacked that stopped without having failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Suspension {
    /// A read from the disk, and nothing else.
    Read,
    /// A thread that may block and take its time.
    Worker,
    /// Memory for a long reply.
    Room,
}

/// Of work that a suspension can travel through.
pub type Result<T, E = Stop> = std::result::Result<T, E>;

/// Of work that can fail, and is never suspended.
pub type Fallible<T, E = Error> = Result<T, E>;

impl Error {
    pub fn new(code: Code, message: impl Into<String>) -> Error {
        Error(Box::new(ErrorParts {
            code,
            message: message.into(),
            labels: Vec::new(),
            extra: None,
        }))
    }

    pub fn into_message(self) -> String {
        self.0.message
    }

    /// An error that MongoDB raises by a bare number (`Location<number>`).
    pub fn coded(code: i32, message: impl Into<String>) -> Error {
        Error::new(Code(code), message)
    }

    /// Our own bug: answered as InternalError, never a panic.
    pub fn internal(message: impl Into<String>) -> Error {
        Error::new(Code::InternalError, message)
    }

    /// Whether the operation is to end, and the error says nothing about what it was doing.
    pub fn is_interruption(&self) -> bool {
        matches!(
            self.code,
            Code::Interrupted | Code::MaxTimeMSExpired | Code::InterruptedAtShutdown
        )
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
        self.message = format!("{ctx} :: caused by :: {}", self.message);
        self
    }
}

impl Stop {
    pub fn failure(&self) -> Option<&Error> {
        match self {
            Stop::Failed(e) => Some(e),
            Stop::Suspended(_) => None,
        }
    }

    /// Whether it failed with this code.
    pub fn is(&self, code: Code) -> bool {
        self.failure().is_some_and(|e| e.code == code)
    }

    pub fn is_suspension(&self) -> bool {
        matches!(self, Stop::Suspended(_))
    }

    /// See [`Error::is_interruption`].
    pub fn is_interruption(&self) -> bool {
        self.failure().is_some_and(Error::is_interruption)
    }

    /// The error that is told where nothing can be suspended. To be suspended there is a bug.
    pub fn into_error(self) -> Error {
        match self {
            Stop::Failed(e) => e,
            Stop::Suspended(lack) => Error::internal(format!(
                "suspended for lack of {lack:?} where nothing may be"
            )),
        }
    }

    /// The same stop with its error, if it has one, made into another.
    pub fn map_error(self, f: impl FnOnce(Error) -> Error) -> Stop {
        match self {
            Stop::Failed(e) => Stop::Failed(f(e)),
            suspended => suspended,
        }
    }

    /// See [`Error::context`].
    pub fn context(self, ctx: &str) -> Stop {
        self.map_error(|e| e.context(ctx))
    }
}

impl<E: Into<Error>> From<E> for Stop {
    #[inline]
    fn from(e: E) -> Stop {
        Stop::Failed(e.into())
    }
}

impl From<Suspension> for Stop {
    fn from(lack: Suspension) -> Stop {
        Stop::Suspended(lack)
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stop::Failed(e) => e.fmt(f),
            Stop::Suspended(lack) => write!(f, "suspended for lack of {lack:?}"),
        }
    }
}

impl std::error::Error for Stop {}

impl std::ops::Deref for Error {
    type Target = ErrorParts;

    #[inline]
    fn deref(&self) -> &ErrorParts {
        &self.0
    }
}

impl std::ops::DerefMut for Error {
    #[inline]
    fn deref_mut(&mut self) -> &mut ErrorParts {
        &mut self.0
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ({}): {}",
            self.code.name(),
            self.code.0,
            self.message
        )
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
    ($($arg:tt)*) => { return Err($crate::err!($($arg)*).into()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(Code::DuplicateKey.name(), "DuplicateKey");
        assert_eq!(Code(17280).name(), "Location17280");
        assert_eq!(Code(40415).name(), "IDLUnknownField");
        assert_eq!(err!(BadValue, "x {}", 1).message, "x 1");
    }

    #[test]
    fn a_suspension_is_no_failure() {
        let failed = |e: Error| -> Result<()> { Err(e)? };
        let failed = failed(err!(BadValue, "x")).unwrap_err();
        assert!(failed.is(Code::BadValue) && !failed.is_suspension());
        assert_eq!(
            failed.context("y").to_string(),
            "BadValue (2): y :: caused by :: x"
        );
        let suspended = || -> Result<()> { Err(Suspension::Read)? };
        let stop = suspended().unwrap_err().context("y");
        assert!(matches!(stop, Stop::Suspended(Suspension::Read)));
        assert_eq!(stop.into_error().code, Code::InternalError);
    }

    #[test]
    fn a_stop_is_two_words_long() {
        assert_eq!(size_of::<Result<()>>(), 2 * size_of::<usize>());
        assert_eq!(size_of::<Fallible<()>>(), size_of::<usize>());
    }
}
